package tests;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.errors.RetriableException;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;
import org.apache.kafka.connect.storage.StringConverter;

/** A sink that appends what it gets to a file, and misbehaves as its setting "mode" says. */
public class TestSinkPlugin extends SinkConnector {
    private Map<String, String> config;

    @Override
    public void start(Map<String, String> config) {
        this.config = config;
        if ("connector raises".equals(config.get("mode"))) context().raiseError(new IllegalStateException("the shelf is gone"));
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Appending.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> found = new ArrayList<>();
        Map<String, String> own = new HashMap<>(Map.of("out", config.get("out"), "mode", config.getOrDefault("mode", "")));
        for (int task = 0; task < most; task++) found.add(config.getOrDefault("mode", "").equals("own settings") ? own : config);
        return found;
    }

    @Override
    public void stop() {}

    @Override
    public boolean alterOffsets(Map<String, String> config, Map<TopicPartition, Long> offsets) {
        offsets.forEach((partition, offset) -> {
            if (offset != null && offset % 2 == 1) throw new IllegalArgumentException(partition + " has no record " + offset);
        });
        return false;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef().define("out", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "");
    }

    @Override
    public String version() {
        return "7";
    }

    /** A converter whose texts are in capitals. */
    public static class Shouting extends StringConverter {
        private String closes;

        @Override
        public void close() {
            if (closes != null) Appending.note(closes, "close");
        }

        @Override
        public ConfigDef config() {
            return new ConfigDef().define("whisper", ConfigDef.Type.PASSWORD, "", ConfigDef.Importance.LOW, "");
        }

        @Override
        public void configure(Map<String, ?> config, boolean isKey) {
            closes = (String) config.get("closes");
            if (config.get("blocks") == null) return;
            Appending.note((String) config.get("blocks"), "start");
            Appending.deaf();
        }

        /** As code in Kotlin or Scala does, which declares no checked exceptions. */
        @SuppressWarnings("unchecked")
        private static <E extends Exception> void raise(Exception error) throws E {
            throw (E) error;
        }

        @Override
        public SchemaAndValue toConnectData(String topic, byte[] value) {
            if (new String(value).equals("hush")) Shouting.<RuntimeException>raise(new java.io.IOException("not aloud"));
            return new SchemaAndValue(Schema.OPTIONAL_STRING_SCHEMA, new String(value).toUpperCase());
        }
    }

    public static class Appending extends SinkTask {
        private Map<String, String> config;
        private String mode;
        private int puts;
        private boolean waits;
        private List<SinkRecord> refused;
        private final List<SinkRecord> unreported = new ArrayList<>();
        private final List<SinkRecord> held = new ArrayList<>();

        @Override
        public void start(Map<String, String> config) {
            this.config = config;
            mode = config.getOrDefault("mode", "");
            note("start");
            if (mode.equals("start throws")) throw new IllegalStateException("no licence");
            if (mode.equals("start is deaf")) deaf();
            if (mode.equals("start blocks")) {
                try {
                    Thread.sleep(3_600_000);
                } catch (InterruptedException stopped) {
                    throw new IllegalStateException(stopped);
                }
            }
        }

        /** As a connection that waits for its other end. */
        private static void deaf() {
            while (true) {
                try {
                    Thread.sleep(3_600_000);
                } catch (InterruptedException ignored) {
                    // Waits on.
                }
            }
        }

        private void note(String line) {
            note(config.get("out"), line);
        }

        private static void note(String out, String line) {
            try {
                Files.writeString(new File(out).toPath(), line + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public void open(Collection<TopicPartition> partitions) {
            for (TopicPartition each : partitions) {
                note("open " + each);
                if (mode.equals("rewinds")) context.offset(each, 2L);
            }
        }

        @Override
        public void close(Collection<TopicPartition> partitions) {
            for (TopicPartition each : partitions) note("close " + each);
            if (mode.startsWith("put ") || mode.startsWith("preCommit ")) throw new IllegalStateException("no way out");
        }

        @Override
        public void put(Collection<SinkRecord> records) {
            if (records.isEmpty()) {
                waits = true;
                if (mode.equals("pauses")) context.resume(context.assignment().toArray(new TopicPartition[0]));
                if (mode.equals("reports when idle")) flush(null);
                if (!held.isEmpty()) write();
                return;
            }
            puts++;
            if (mode.equals("counts")) note("got " + records.size());
            if (mode.startsWith("held")) {
                held.addAll(records);
                return;
            }
            if (mode.startsWith("put ")) note(mode);
            if (mode.equals("put is deaf")) deaf();
            if (mode.equals("put is busy")) throw new RetriableException("busy");
            if (mode.equals("put blocks") || mode.equals("put gives up")) {
                try {
                    Thread.sleep(3_600_000);
                } catch (InterruptedException stopped) {
                    if (mode.equals("put gives up")) return; // as if it had written
                    throw new IllegalStateException(stopped);
                }
            }
            if (mode.equals("throws")) throw new IllegalStateException("no room", new java.io.IOException("disk"));
            if (mode.equals("retriable") && puts == 1) {
                refused = new ArrayList<>(records);
                context.timeout(10);
                throw new RetriableException("busy");
            }
            if (mode.equals("rewinds later") && puts == 1) context.offset(new TopicPartition(records.iterator().next().topic(), 0), 1L);
            if (refused != null) {
                note("same " + refused.equals(new ArrayList<>(records)));
                refused = null;
            }
            if (mode.startsWith("pauses") && puts == 1) context.pause(context.assignment().toArray(new TopicPartition[0]));
            append(records);
        }

        /** What it held, when there are no other records. */
        private void write() {
            if (mode.equals("held, then busy") && puts++ == 1) throw new RetriableException("busy");
            List<SinkRecord> all = new ArrayList<>(held);
            held.clear();
            if (mode.equals("held, then dropped")) throw new IllegalStateException("connection reset");
            if (mode.equals("held, then wanted again")) {
                context.offset(new TopicPartition(all.get(0).topic(), 0), 0L);
                return;
            }
            append(all);
        }

        private void append(Collection<SinkRecord> records) {
            for (SinkRecord each : records) {
                if (mode.startsWith("reports") && each.kafkaOffset() % 3 == 1) {
                    report(each);
                    continue;
                }
                StringBuilder headers = new StringBuilder();
                for (Header header : each.headers()) headers.append(header.key()).append('=').append(header.value());
                note(each.topic() + " " + each.kafkaPartition() + " " + each.kafkaOffset() + " " + each.key() + " " + each.value() + " " + each.timestamp() + " " + headers);
                if (mode.equals("tells types of timestamps")) note("type " + each.timestampType());
            }
        }

        private void report(SinkRecord record) {
            if (context.errantRecordReporter() == null) throw new IllegalStateException("no reporter for " + record.kafkaOffset());
            IllegalStateException error = new IllegalStateException("no shelf for it", new java.io.IOException("full"));
            try {
                if (mode.equals("reports")) context.errantRecordReporter().report(record, error).get();
                else unreported.add(record.newRecord("elsewhere", 7, null, null, null, "changed", null));
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        }

        @Override
        public void flush(Map<TopicPartition, OffsetAndMetadata> offsets) {
            if (mode.equals("reports when idle") && offsets != null) return;
            for (SinkRecord each : unreported) context.errantRecordReporter().report(each, new IllegalStateException("too late"));
            unreported.clear();
        }

        @Override
        public Map<TopicPartition, OffsetAndMetadata> preCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            if (mode.equals("preCommit blocks") && !offsets.isEmpty() && puts > 0) {
                note(mode);
                try {
                    Thread.sleep(3_600_000);
                } catch (InterruptedException stopped) {
                    return offsets; // as if they were durable
                }
            }
            if (!held.isEmpty()) return new HashMap<>();
            // When it has got what was there, and has written it.
            if (mode.equals("pauses until it is durable") && waits) context.resume(context.assignment().toArray(new TopicPartition[0]));
            if (mode.equals("boasts")) {
                Map<TopicPartition, OffsetAndMetadata> more = new HashMap<>();
                offsets.forEach((at, offset) -> more.put(at, new OffsetAndMetadata(offset.offset() + 100)));
                more.put(new TopicPartition("of-another", 0), new OffsetAndMetadata(1));
                more.put(new TopicPartition("of-another", 1), null);
                return more;
            }
            // The last record of each partition is not durable yet.
            if (!mode.equals("holds")) return super.preCommit(offsets);
            Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
            offsets.forEach((at, offset) -> found.put(at, new OffsetAndMetadata(Math.max(0, offset.offset() - 1))));
            return found;
        }

        @Override
        public void stop() {
            note("stop");
        }

        @Override
        public String version() {
            return "7";
        }
    }
}
