"""What is durable, whole and of one writer: ``log/``."""

from __future__ import annotations

from .mutant import Mutant

STORE = "connectgroup/log/sqlite_store.py"
SQLITE = "connectgroup/log/sqlite.py"
WAL = "connectgroup/log/wal.py"
LOCK = "connectgroup/log/lock.py"
BASE = "connectgroup/log/base.py"
MEMORY = "connectgroup/log/memory.py"

ON_DISK = "tests/log/test_sqlite.py"
IN_MEMORY = "tests/log/test_memory.py"
POWER = "tests/log/test_power_loss.py"
SMALL_PRINT = "tests/log/test_small_print.py"

LOG: tuple[Mutant, ...] = (
    Mutant(
        name="a log that gets no thread raises what is not a LogError",
        file=SQLITE,
        old="        except RuntimeError as error:  # the executor's",
        new="        except LogError as error:  # the executor's",
        tests=f"{ON_DISK}::test_a_log_that_gets_no_thread_is_not_opened_and_holds_nothing",
    ),
    Mutant(
        name="an append returns before it is written (D1)",
        file=SQLITE,
        old="        await written\n",
        new="        await asyncio.sleep(0)\n",
        tests=ON_DISK,
    ),
    Mutant(
        name="a failed append is said to be durable (D3)",
        file=SQLITE,
        old="                            written.set_exception(_copy(error))\n",
        new="                            written.set_result(None)\n",
        tests=f"{ON_DISK}::test_a_full_disk_is_an_error_until_there_is_room_again",
    ),
    Mutant(
        name="a transaction is not committed (D3)",
        file=STORE,
        old='            connection.execute("COMMIT")\n',
        new='            connection.execute("ROLLBACK")\n',
        tests=ON_DISK,
    ),
    Mutant(
        name="a commit may be lost with the machine: synchronous=NORMAL",
        file=STORE,
        old=(
            '                connection.execute("PRAGMA synchronous = FULL")\n'
            '                if _pragma(connection, "synchronous") != 2:\n'
        ),
        new=(
            '                connection.execute("PRAGMA synchronous = NORMAL")\n'
            '                if _pragma(connection, "synchronous") != 1:\n'
        ),
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="batches that wait together are not one transaction",
        file=SQLITE,
        old="due = await self._run(Store.append, [batch for batch, _ in taken])",
        new="due = [g for batch, _ in taken for g in await self._run(Store.append, [batch])]",
        tests=f"{ON_DISK}::test_many_appends_at_a_time_share_a_commit",
    ),
    Mutant(
        name="a connection on which a transaction failed goes on being used",
        file=STORE,
        old="        except BaseException:\n            self._drop_connection()\n            raise\n",
        new="        except BaseException:\n            raise\n",
        tests=f"{ON_DISK}::test_a_writer_whose_lock_file_was_taken_away_is_fenced_by_the_epoch",
    ),
    Mutant(
        name="a writer whose log was opened by another goes on writing (D4)",
        file=STORE,
        old="            if epoch != self._epoch:\n",
        new="            if epoch < self._epoch:\n",
        tests=f"{ON_DISK}::test_a_writer_whose_lock_file_was_taken_away_is_fenced_by_the_epoch",
    ),
    Mutant(
        name="an opening does not raise the coordinator epoch (D4)",
        file=STORE,
        old="                self._epoch = self._read_epoch(connection) + 1\n",
        new="                self._epoch = self._read_epoch(connection) or 1\n",
        tests=ON_DISK,
    ),
    Mutant(
        name="two processes may hold the log",
        file=LOCK,
        old="fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        new="fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        tests=f"{ON_DISK}::test_a_second_process_is_turned_away_and_told_who_has_the_log",
    ),
    Mutant(
        name="a row whose checksum is wrong is served (D7)",
        file=STORE,
        old="        if crc != self.crc:\n",
        new="        if crc < 0:\n",
        tests=f"{ON_DISK}::test_a_group_with_a_damaged_record_is_refused_and_the_others_are_served",
    ),
    Mutant(
        name="the checksum of a row leaves out its value",
        file=STORE,
        old='return zlib.crc32(b"".join((head, group_id, name, value or b"")))',
        new='return zlib.crc32(b"".join((head, group_id, name)))',
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="a row that is missing is not missed (D7)",
        file=STORE,
        old="            if expected.get(group) != sums.get(group) and group not in broken:\n",
        new="            if expected.get(group) is None and group not in broken:\n",
        tests=f"{ON_DISK}::test_a_group_with_a_damaged_record_is_refused_and_the_others_are_served",
    ),
    Mutant(
        name="a row of a coordinator epoch that never was is served",
        file=STORE,
        old="        if self.epoch > newest_epoch:\n",
        new="        if self.epoch > newest_epoch + 1_000_000:\n",
        tests=SMALL_PRINT,
    ),
    Mutant(
        name="damage in the middle of the write-ahead log loses acknowledged records without a word",
        file=WAL,
        old="    if commits > 1:\n",
        new="    if commits > 1_000_000:\n",
        tests=f"{ON_DISK}::test_no_flipped_bit_in_the_write_ahead_log_loses_more_than_the_last_transaction",
    ),
    Mutant(
        name="a torn last transaction makes the log unreadable (F9)",
        file=WAL,
        old="    if commits > 1:\n",
        new="    if bad:\n",
        tests=f"{ON_DISK}::test_a_torn_last_transaction_is_cut_off_and_no_other",
    ),
    Mutant(
        name="a flipped bit in the write-ahead log's header loses all of it without a word",
        file=WAL,
        old=(
            "    if words is None or page_size not in _PAGE_SIZES or _checksum(words, data[:24], 0, 0) "
            "!= (sum0, sum1):\n"
        ),
        new="    if words is None or page_size not in _PAGE_SIZES:\n",
        tests=f"{ON_DISK}::test_no_flipped_bit_in_the_write_ahead_log_loses_more_than_the_last_transaction",
    ),
    Mutant(
        name="a write-ahead log that was taken away is not missed",
        file=STORE,
        old='        if doing == "writing" and not (self._wal.exists() and self.path.exists()):\n',
        new='        if doing == "written" and not (self._wal.exists() and self.path.exists()):\n',
        tests=f"{ON_DISK}::test_a_write_ahead_log_that_was_taken_away_is_missed",
    ),
    Mutant(
        name="an empty file where a log was written is taken for a new log",
        file=STORE,
        old='        if doing in ("writing", "closing") and self.path.exists() and not self.path.stat().st_size:\n',
        new='        if doing in ("written",) and self.path.exists() and not self.path.stat().st_size:\n',
        tests="tests/log/test_damaged_files.py::test_a_file_cut_at_any_page_or_beside_it_is_refused",
    ),
    Mutant(
        name="what a sync that failed has left in memory alone is written back into the file",
        file=STORE,
        old="            rewrite_wal(self._wal)\n",
        new="            pass\n",
        tests=f"{POWER}::test_syncs_that_failed_and_lost_what_they_were_to_write_cost_nothing_acknowledged[-wal-2]",
    ),
    Mutant(
        name="what the holder of a log is doing reaches the disk later than what it does",
        file=LOCK,
        old="        os.fsync(self._descriptor)\n",
        new="",
        tests=f"{POWER}::test_nothing_acknowledged_is_lost_with_the_power[1]",
    ),
    Mutant(
        name="another application's database is taken for a log",
        file=STORE,
        old="                if application != APPLICATION_ID and (application or version or tables):\n",
        new="                if application != APPLICATION_ID and application:\n",
        tests=f"{ON_DISK}::test_a_file_that_cannot_be_our_log_is_refused_on_one_line_and_left_as_it_is",
    ),
    Mutant(
        name="a log of newer software is opened",
        file=STORE,
        old="                if not new and version != SCHEMA_VERSION:\n",
        new="                if not new and version < SCHEMA_VERSION:\n",
        tests=f"{ON_DISK}::test_a_file_that_cannot_be_our_log_is_refused_on_one_line_and_left_as_it_is",
    ),
    Mutant(
        name="compaction drops the newest record of a key (D2)",
        file=STORE,
        old="in entries if newest[key] != offset or gone)",
        new="in entries if newest[key] == offset or gone)",
        tests=ON_DISK,
    ),
    Mutant(
        name="compaction drops tombstones and lets what they removed stand (KAFKA-15018)",
        file=STORE,
        old="in entries if newest[key] != offset or gone)",
        new="in entries if gone)",
        tests=ON_DISK,
    ),
    Mutant(
        name="compaction makes damage look whole",
        file=STORE,
        old="                if expected.get(group) != sums or len(kept) == len(entries):\n",
        new="                if len(kept) == len(entries):\n",
        tests=f"{ON_DISK}::test_a_group_with_a_damaged_record_is_refused_and_the_others_are_served",
    ),
    Mutant(
        name="replaced records pile up",
        file=STORE,
        old="if self._added[group] >= max(self._compact_after, self._live[group])]",
        new="if self._added[group] < 0]",
        tests=f"{ON_DISK}::test_replaced_records_do_not_pile_up",
    ),
    Mutant(
        name="a batch of any size is taken (D9)",
        file=BASE,
        old="    if size > max_bytes:\n",
        new="    if size < 0:\n",
        tests=f"{IN_MEMORY}::TestMemoryLog::test_a_batch_with_one_record_too_large_is_refused_whole",
    ),
    Mutant(
        name="the bound of a batch leaves out the keys",
        file=BASE,
        old='            size += len(key.group_id.encode()) + len(key.name.encode()) + len(value or b"")\n',
        new='            size += len(value or b"")\n',
        tests=f"{SMALL_PRINT}::test_the_bound_of_a_batch_is_on_keys_and_values",
    ),
    Mutant(
        name="a log that was opened again does not fence the one before",
        file=MEMORY,
        old="        if newest != self._epoch:\n",
        new="        if newest < self._epoch:\n",
        tests=IN_MEMORY,
    ),
    Mutant(
        name="a record that cannot be read is left out (D7)",
        file=MEMORY,
        old='                    broken.setdefault(key.group_id, LogError(f"{place}: {printable(error, most=200)}"))\n',
        new="                    _ = place, error\n",
        tests=f"{IN_MEMORY}::test_a_group_whose_bytes_do_not_decode_is_refused_and_the_others_are_served",
    ),
)
