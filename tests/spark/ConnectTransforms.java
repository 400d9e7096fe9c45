import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.Date;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Decimal;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.data.Timestamp;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.Transformation;

/** Applies Kafka Connect's own transforms: one request as JSON in each line of standard input, one response in each of
 * standard output. A value is a text with its type; null is null. */
public final class ConnectTransforms {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode response = JSON.createObjectNode();
            try {
                apply(JSON.readTree(line), response);
            } catch (Exception error) {
                response = JSON.createObjectNode();
                response.put("error", String.valueOf(error.getMessage()));
            }
            System.out.println(JSON.writeValueAsString(response));
        }
    }

    @SuppressWarnings("unchecked")
    private static void apply(JsonNode request, ObjectNode response) throws Exception {
        Map<String, String> config = new HashMap<>();
        request.get("config").fields().forEachRemaining(each -> config.put(each.getKey(), each.getValue().asText()));
        String name = "org.apache.kafka.connect.transforms." + request.get("type").asText();
        SchemaBuilder builder = SchemaBuilder.struct();
        for (JsonNode field : request.get("fields")) {
            builder.field(field.get(0).asText(), schema(field.get(1).asText()));
        }
        Schema schema = builder.build();
        Struct value = new Struct(schema);
        for (JsonNode field : request.get("fields")) {
            String text = field.get(2).isNull() ? null : field.get(2).asText();
            value.put(field.get(0).asText(), text == null ? null : parsed(field.get(1).asText(), text));
        }
        try (Transformation<SinkRecord> transform =
                (Transformation<SinkRecord>) Class.forName(name).getDeclaredConstructor().newInstance()) {
            transform.configure(config);
            SinkRecord record = new SinkRecord(
                    "orders", 1, null, null, schema, value, 7L, 1709209801500L, TimestampType.CREATE_TIME);
            SinkRecord after = transform.apply(record);
            response.put("topic", after.topic());
            write(response, "value", after.value());
            write(response, "key", after.key());
        }
    }

    private static Schema schema(String type) {
        switch (type) {
            case "int8": return Schema.OPTIONAL_INT8_SCHEMA;
            case "int16": return Schema.OPTIONAL_INT16_SCHEMA;
            case "int32": return Schema.OPTIONAL_INT32_SCHEMA;
            case "int64": return Schema.OPTIONAL_INT64_SCHEMA;
            case "float32": return Schema.OPTIONAL_FLOAT32_SCHEMA;
            case "float64": return Schema.OPTIONAL_FLOAT64_SCHEMA;
            case "boolean": return Schema.OPTIONAL_BOOLEAN_SCHEMA;
            case "string": return Schema.OPTIONAL_STRING_SCHEMA;
            case "timestamp": return Timestamp.builder().optional().build();
            case "date": return org.apache.kafka.connect.data.Date.builder().optional().build();
            case "bytes": return Schema.OPTIONAL_BYTES_SCHEMA;
            case "decimal": return Decimal.builder(2).optional().build();
            default: throw new IllegalArgumentException(type);
        }
    }

    private static Object parsed(String type, String text) {
        switch (type) {
            case "int8": return Byte.valueOf(text);
            case "int16": return Short.valueOf(text);
            case "int32": return Integer.valueOf(text);
            case "int64": return Long.valueOf(text);
            case "float32": return Float.valueOf(text);
            case "float64": return Double.valueOf(text);
            case "boolean": return Boolean.valueOf(text);
            case "timestamp":
            case "date": return new Date(Long.parseLong(text));
            case "bytes": return HexFormat.of().parseHex(text);
            case "decimal": return new BigDecimal(text);
            default: return text;
        }
    }

    /** Texts: times as milliseconds, structs as objects, all else as Java prints it. */
    private static void write(ObjectNode to, String name, Object value) {
        if (value == null) {
            to.putNull(name);
        } else if (value instanceof Struct) {
            ObjectNode inner = to.putObject(name);
            for (Field field : ((Struct) value).schema().fields()) {
                write(inner, field.name(), ((Struct) value).get(field));
            }
        } else if (value instanceof Date) {
            to.put(name, "at " + ((Date) value).getTime());
        } else {
            to.put(name, value.toString());
        }
    }
}
