import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group as Kafka's own consumer makes it, which tells on its standard output what it is given, what it
 * gives up and what it reads, one JSON object a line. It ends when its standard input does.
 *
 * Arguments: topic, then settings of the consumer as name=value.
 */
public final class JavaMember {
    private static volatile boolean stopping = false;

    public static void main(String[] args) {
        Properties settings = new Properties();
        for (int i = 1; i < args.length; i++) {
            int equals = args[i].indexOf('=');
            settings.put(args[i].substring(0, equals), args[i].substring(equals + 1));
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            Thread end = new Thread(() -> {
                try {
                    while (System.in.read() >= 0) { }
                } catch (java.io.IOException closed) {
                    // as good as its end
                }
                stopping = true;
                consumer.wakeup();
            });
            end.setDaemon(true);
            end.start();
            consumer.subscribe(List.of(args[0]), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    tell("assigned", numbers(partitions));
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    tell("revoked", numbers(partitions));
                }

                @Override
                public void onPartitionsLost(Collection<TopicPartition> partitions) {
                    tell("lost", numbers(partitions));
                }
            });
            tell("started", "");
            while (!stopping) {
                StringBuilder read = new StringBuilder();
                try {
                    consumer.poll(Duration.ofMillis(200)).forEach(record -> read.append(read.length() > 0 ? "," : "")
                        .append('[').append(record.partition()).append(',').append(record.offset()).append(']'));
                } catch (WakeupException wanted) {
                    break;
                }
                if (read.length() > 0) {
                    tell("read", read.toString());
                }
            }
        }
        tell("ended", "");
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        StringBuilder listed = new StringBuilder();
        partitions.forEach(each -> listed.append(listed.length() > 0 ? "," : "").append(each.partition()));
        return listed.toString();
    }

    private static synchronized void tell(String event, String what) {
        System.out.println("{\"event\": \"" + event + "\", \"at_ns\": " + System.nanoTime() + ", \"what\": [" + what + "]}");
        System.out.flush();
    }
}
