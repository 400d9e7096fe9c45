package tests;

import java.io.File;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Time;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.errors.RetriableException;
import org.apache.kafka.connect.source.ConnectorTransactionBoundaries;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** A source of counted rows in several partitions that misbehaves as its setting "mode" says. */
public class TestPlugin extends SourceConnector {
    private Map<String, String> config;
    private Thread watcher;

    @Override
    public void start(Map<String, String> config) {
        this.config = config;
        if ("connector throws".equals(config.get("mode"))) throw new IllegalStateException("no such city", new java.io.IOException("disk " + config.get("pass.word")));
        if ("connector refuses".equals(config.get("mode"))) throw new IllegalArgumentException("not with " + config.get("pass.word"));
        if ("connector blocks".equals(config.get("mode"))) Counting.blocked();
        if (config.get("partitions.file") == null) return;
        // More partitions appear when the file changes.
        watcher = new Thread(() -> {
            int before = partitions();
            try {
                while (true) {
                    Thread.sleep(20);
                    if ("raise".equals(text("partitions.file"))) context.raiseError(new IllegalStateException("the city is gone"));
                    else if ("raise null".equals(text("partitions.file"))) context.raiseError(null);
                    else if ("always".equals(config.get("mode")) || partitions() != before) context.requestTaskReconfiguration();
                    if (!text("partitions.file").startsWith("raise")) before = partitions();
                }
            } catch (InterruptedException stopped) {
                return;
            }
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    private String text(String name) {
        try {
            return Files.readString(new File(config.get(name)).toPath()).trim();
        } catch (Exception error) {
            return "1";
        }
    }

    private int partitions() {
        String found = config.get("partitions.file") == null ? config.getOrDefault("partitions", "1") : text("partitions.file");
        return found.startsWith("raise") ? 1 : Integer.parseInt(found);
    }

    @Override
    public Class<? extends Task> taskClass() {
        switch (config.getOrDefault("mode", "")) {
            case "no task class": return null;
            case "abstract task": return SourceTask.class;
            case "hidden task": return Hidden.class;
            case "demanding task": return Demanding.class;
            case "sink task": return TestSinkPlugin.Appending.class;
            default: return Counting.class;
        }
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> found = new ArrayList<>();
        if ("no list of tasks".equals(config.get("mode"))) return null;
        if ("a task is null".equals(config.get("mode"))) return Collections.singletonList(null);
        if ("too many tasks".equals(config.get("mode"))) return Collections.nCopies(most + 1, config);
        for (int task = 0; task < Math.min(most, partitions()); task++) {
            Map<String, String> each = new HashMap<>(config);
            StringBuilder names = new StringBuilder();
            for (int at = task; at < partitions(); at += most) names.append(names.length() == 0 ? "" : ",").append("p").append(at);
            each.put("mine", names.toString());
            found.add(each);
        }
        return found;
    }

    @Override
    public ConnectorTransactionBoundaries canDefineTransactionBoundaries(Map<String, String> config) {
        return config.getOrDefault("mode", "").startsWith("transactions") ? ConnectorTransactionBoundaries.SUPPORTED : ConnectorTransactionBoundaries.UNSUPPORTED;
    }

    @Override
    public boolean alterOffsets(Map<String, String> config, Map<Map<String, ?>, Map<String, ?>> offsets) {
        if ("offsets are fixed".equals(config.get("mode"))) throw new UnsupportedOperationException();
        offsets.forEach((partition, offset) -> {
            // Numbers are those of Kafka Connect: a Long, also in partitions.
            if (!(partition.get("number") instanceof Long)) throw new IllegalArgumentException("no number in " + partition);
            if (offset == null && "keeps".equals(config.get("mode"))) throw new IllegalArgumentException("keep " + partition.get("part") + " and " + config.get("pass.word"));
            if (offset != null && (Long) offset.get("n") < 0) throw new IllegalArgumentException("n is " + offset.get("n"));
        });
        return true;
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> config) {
        if (config.getOrDefault("mode", "").startsWith("transactions")) return ExactlyOnceSupport.SUPPORTED;
        return "at least once".equals(config.get("mode")) ? ExactlyOnceSupport.UNSUPPORTED : null;
    }

    @Override
    public void stop() {
        if (watcher != null) watcher.interrupt();
        if (config.get("stopped.file") != null) new File(config.get("stopped.file")).mkdir();
        if ("connector stop blocks".equals(config.get("mode"))) Counting.blocked();
    }

    private static void checkLength(String name, Object value) {
        if (((Password) value).value().length() == 3) throw new ConfigException(name, value, "too short");
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("mode", ConfigDef.Type.STRING, "", ConfigDef.Importance.LOW, "")
            .define("rows", ConfigDef.Type.INT, 10, ConfigDef.Range.atLeast(0), ConfigDef.Importance.LOW, "")
            .define("pepper", ConfigDef.Type.PASSWORD, "", TestPlugin::checkLength, ConfigDef.Importance.LOW, "")
            .define("pass.word", ConfigDef.Type.PASSWORD, "", ConfigDef.Importance.LOW, "");
    }

    @Override
    public String version() {
        return "7";
    }

    /** A transformation that fails with the first records, which fill the first poll. */
    public static class Picky implements Transformation<SourceRecord> {
        private Object pepper;

        @Override
        public void configure(Map<String, ?> config) {
            pepper = config.get("pepper");
            if ("old pepper".equals(pepper)) throw new IllegalArgumentException("not with " + pepper);
        }

        @Override
        public SourceRecord apply(SourceRecord record) {
            int n = ((Number) record.sourceOffset().get("n")).intValue() - 1;
            if (n < 8) throw new IllegalStateException("not " + n + " with " + pepper);
            return record;
        }

        @Override
        public ConfigDef config() {
            return new ConfigDef().define("pepper", ConfigDef.Type.PASSWORD, "", ConfigDef.Importance.LOW, "");
        }

        @Override
        public void close() {}
    }

    /** A predicate that fails. */
    public static class Sealed implements Predicate<SourceRecord> {
        private Object seal;

        @Override
        public void configure(Map<String, ?> config) {
            seal = config.get("seal");
        }

        @Override
        public boolean test(SourceRecord record) {
            throw new IllegalStateException("broken " + seal);
        }

        @Override
        public ConfigDef config() {
            return new ConfigDef().define("seal", ConfigDef.Type.PASSWORD, "", ConfigDef.Importance.LOW, "");
        }

        @Override
        public void close() {}
    }

    /** A transformation that does not end. */
    public static class Clinging extends Picky {
        @Override
        public SourceRecord apply(SourceRecord record) {
            return record;
        }

        @Override
        public void close() {
            Counting.blocked();
        }
    }

    static class Hidden extends Counting {}

    public static class Demanding extends Counting {
        public Demanding(String name) {}
    }

    public static class Counting extends SourceTask {
        private Map<String, String> config;
        private final Map<String, Long> next = new HashMap<>();
        private String mode;
        private int polls;
        private int acknowledged;

        static void blocked() {
            while (true) {
                try {
                    Thread.sleep(3_600_000);
                } catch (InterruptedException ignored) {
                    // Blocks on.
                }
            }
        }

        @Override
        public void start(Map<String, String> config) {
            this.config = config;
            mode = config.getOrDefault("mode", "");
            if (mode.equals("start throws")) throw new IllegalStateException("no such town", new java.io.IOException("disk " + config.get("pass.word")));
            if (mode.equals("start blocks")) blocked();
            if (mode.equals("class is missing")) throw new NoClassDefFoundError("com/acme/Driver");
            if (mode.equals("exits")) System.exit(3);
            if (mode.equals("leaks threads")) {
                // Threads that all of the process share, which are not those of the plug-in.
                java.util.concurrent.ForkJoinPool.commonPool().submit(() -> {}).join();
                java.util.concurrent.CompletableFuture.runAsync(() -> {}, java.util.concurrent.CompletableFuture
                    .delayedExecutor(1, java.util.concurrent.TimeUnit.MILLISECONDS)).join();
                for (int n = 0; n < 2; n++) {
                    Thread leaked = new Thread(Counting::blocked, "leaked " + n);
                    leaked.setDaemon(true);
                    leaked.start();
                }
            }
            for (String name : config.get("mine").split(",")) {
                Map<String, Object> offset = context.offsetStorageReader().offset(partition(name));
                // As Kafka Connect: a number of an offset is a Long.
                next.put(name, offset == null ? 0L : (Long) offset.get("n"));
            }
        }

        private static Map<String, Object> partition(String name) {
            Map<String, Object> found = new HashMap<>();
            found.put("part", name);
            found.put("number", Integer.valueOf(name.substring(1)));
            return found;
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            polls++;
            if (mode.equals("poll throws") && polls > 1) throw new IllegalStateException("no such street", new java.io.IOException("disk " + config.get("pass.word")));
            if (mode.equals("poll blocks") && polls > 1) blocked();
            if (mode.equals("poll recurses") && polls > 1) return poll();
            if (mode.equals("poll has no memory") && polls > 1) throw new OutOfMemoryError("no heap for " + config.get("pass.word"));
            if (mode.equals("poll asserts") && polls > 1) throw new AssertionError(null, new java.io.IOException("disk " + config.get("pass.word")));
            if (mode.equals("retriable") && polls % 2 == 1) throw new RetriableException("busy");
            if (mode.equals("retriable client") && polls % 2 == 1) throw new org.apache.kafka.common.errors.TimeoutException("busy");
            if (mode.equals("reads its offsets") && polls > 1) {
                Map<String, Object> known = context.offsetStorageReader().offset(partition("p0"));
                if (known == null || (Long) known.get("n") < 7) {
                    Thread.sleep(10);
                    return null;
                }
            }
            List<SourceRecord> found = new ArrayList<>();
            int rows = Integer.parseInt(config.getOrDefault("rows", "10"));
            for (Map.Entry<String, Long> each : next.entrySet()) {
                for (int i = 0; i < 7 && each.getValue() < rows; i++) {
                    long n = each.getValue();
                    each.setValue(n + 1);
                    found.add(record(each.getKey(), n));
                }
            }
            if (found.isEmpty()) {
                Thread.sleep(10);
                return null;
            }
            if (mode.startsWith("transactions") && context.transactionContext() != null) endTransactions(found);
            if (mode.equals("nulls")) {
                List<SourceRecord> holes = new ArrayList<>();
                for (SourceRecord each : found) holes.addAll(Arrays.asList(null, each));
                found = Collections.unmodifiableList(holes);
            }
            return found;
        }

        /** Of ten rows each, or of two polls each: the third one is aborted. */
        private void endTransactions(List<SourceRecord> found) {
            if (mode.equals("transactions of polls")) {
                if (polls == 6) context.transactionContext().abortTransaction();
                else if (polls % 2 == 0) context.transactionContext().commitTransaction();
                return;
            }
            for (SourceRecord each : found) {
                long n = (Long) each.sourceOffset().get("n");
                if (n == 30) context.transactionContext().abortTransaction(each);
                else if (n % 10 == 0) context.transactionContext().commitTransaction(each);
                if (mode.equals("transactions of two minds") && n == 10) context.transactionContext().abortTransaction(each);
            }
        }

        private SourceRecord record(String name, long n) {
            Map<String, Object> offset = Collections.singletonMap("n", mode.equals("reads its offsets") ? (Object) (int) (n + 1) : (Object) (n + 1));
            if (mode.equals("texts")) return new SourceRecord(partition(name), offset, "t", null, Schema.STRING_SCHEMA, name, Schema.STRING_SCHEMA, "v" + n);
            if (mode.equals("no topic")) return new SourceRecord(partition(name), offset, null, 3, Schema.STRING_SCHEMA, name, Schema.STRING_SCHEMA, "v" + n);
            if (mode.equals("heartbeats") && n % 3 == 0) {
                Schema beat = SchemaBuilder.struct().name("io.debezium.connector.common.Heartbeat").field("ts_ms", Schema.INT64_SCHEMA).build();
                return new SourceRecord(partition(name), offset, "__debezium-heartbeat.t", beat, new Struct(beat).put("ts_ms", n));
            }
            if (mode.equals("odd offsets")) return odd(name, n);
            if (mode.equals("types")) return new SourceRecord(partition(name), offset, "t", null, null, types(), allOf(types(), n));
            SchemaBuilder schema = SchemaBuilder.struct().field("part", Schema.STRING_SCHEMA);
            boolean isWide = mode.equals("evolves") && n >= 5;
            schema.field("n", isWide ? Schema.INT64_SCHEMA : Schema.INT32_SCHEMA);
            if (isWide) schema.field("more", Schema.OPTIONAL_STRING_SCHEMA);
            boolean changes = mode.equals("changes type") && n >= 5 || mode.equals("changes type late") && n >= 12;
            if (changes) schema = SchemaBuilder.struct().field("part", Schema.STRING_SCHEMA).field("n", Schema.STRING_SCHEMA);
            Schema built = schema.build();
            Struct value = new Struct(built).put("part", name);
            if (changes) value.put("n", "x");
            else if (isWide) value.put("n", n).put("more", "m" + n);
            else value.put("n", (int) n);
            SourceRecord made = new SourceRecord(partition(name), offset, "t", 0, Schema.STRING_SCHEMA, name, built, value, 1700000000000L + n);
            made.headers().addString("h", "v" + n);
            if (mode.equals("headers")) made.headers().addBytes("raw", new byte[] {0, -1}).addBoolean("flag", true).addInt("i", 7);
            return made;
        }

        /** Partitions and offsets of all that Kafka Connect allows, and more. */
        private SourceRecord odd(String name, long n) {
            Map<String, Object> partition = new HashMap<>(partition(name)), offset = new HashMap<>();
            partition.put("none", null);
            partition.put("ratio", 2.5e9);
            partition.put("nested", Collections.singletonMap("z", Arrays.asList(1, "\u001f\u00e9")));
            offset.put("n", n + 1);
            offset.put("raw", new byte[] {0, -1});
            offset.put("at", new Date(5));
            offset.put("none", null);
            offset.put("nested", Collections.singletonMap("z", 1.5f));
            Map<String, Object> known = context.offsetStorageReader().offset(partition);
            return new SourceRecord(n % 3 == 2 ? null : partition, n % 3 == 1 ? Collections.emptyMap() : offset, "t", null, null, null, Schema.STRING_SCHEMA, "v" + n + " after " + (known == null ? null : known.get("n")));
        }

        private static Schema types() {
            return SchemaBuilder.struct()
                .field("i8", Schema.INT8_SCHEMA).field("i16", Schema.INT16_SCHEMA).field("i64", Schema.INT64_SCHEMA)
                .field("f32", Schema.FLOAT32_SCHEMA).field("f64", Schema.FLOAT64_SCHEMA).field("flag", Schema.BOOLEAN_SCHEMA)
                .field("raw", Schema.BYTES_SCHEMA).field("buffer", Schema.BYTES_SCHEMA).field("missing", Schema.OPTIONAL_INT32_SCHEMA)
                .field("none", SchemaBuilder.int32().optional().defaultValue(5).build()).field("unset", SchemaBuilder.int32().defaultValue(5).build())
                .field("price", Decimal.schema(2)).field("day", org.apache.kafka.connect.data.Date.SCHEMA)
                .field("clock", Time.SCHEMA).field("at", Timestamp.SCHEMA)
                .field("tags", SchemaBuilder.array(Schema.OPTIONAL_STRING_SCHEMA).build())
                .field("counts", SchemaBuilder.map(Schema.STRING_SCHEMA, Schema.INT32_SCHEMA).build())
                .field("inner", SchemaBuilder.struct().field("x", Schema.INT32_SCHEMA).field("prices", SchemaBuilder.array(Decimal.schema(1)).build())
                    .field("none", SchemaBuilder.string().optional().defaultValue("").build()).build())
                .build();
        }

        private static Struct allOf(Schema schema, long n) {
            Schema inner = schema.field("inner").schema();
            return new Struct(schema)
                .put("i8", (byte) -128).put("i16", (short) 32767).put("i64", Long.MIN_VALUE).put("f32", 1.5f).put("f64", 0.1)
                .put("flag", true).put("raw", new byte[] {0, -1}).put("buffer", ByteBuffer.wrap(new byte[] {9, 7}))
                .put("price", new BigDecimal("12345678901234567890.12")).put("day", new Date(-86_400_000L)).put("clock", new Date(45_001_250L))
                .put("at", new Date(1_709_209_801_123L)).put("tags", Arrays.asList("a", null, "c")).put("counts", Collections.singletonMap("k", 7))
                .put("inner", new Struct(inner).put("x", 3).put("prices", Arrays.asList(new BigDecimal("0.5"))));
        }

        @Override
        public void commitRecord(SourceRecord record, RecordMetadata metadata) {
            if (mode.equals("receipt throws") && acknowledged++ == 1) throw new IllegalStateException("no receipt " + metadata.offset());
            if (!mode.equals("receipt throws")) acknowledged++;
        }

        @Override
        public void commit() throws InterruptedException {
            if (mode.equals("commit throws")) throw new IllegalStateException("no receipt");
            if (mode.equals("commit blocks")) blocked();
            try {
                if (config.get("commits.file") != null) Files.writeString(new File(config.get("commits.file")).toPath(), String.valueOf(acknowledged));
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public void stop() {
            if (mode.equals("stop throws")) throw new IllegalStateException("no way out");
            if (mode.equals("stop blocks")) blocked();
        }

        @Override
        public String version() {
            return "7";
        }
    }
}
