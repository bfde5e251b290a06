import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** A member of a group with Apache Kafka's client; tests/interop/members/process.py is its other end. */
public final class Member {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final Map<String, String> ASSIGNORS = Map.of(
            "range", "org.apache.kafka.clients.consumer.RangeAssignor",
            "roundrobin", "org.apache.kafka.clients.consumer.RoundRobinAssignor",
            "sticky", "org.apache.kafka.clients.consumer.StickyAssignor",
            "cooperative-sticky", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // whatever a library prints must not be taken for an event
        JsonNode asked = JSON.readTree(arguments[0]);
        Map<String, Object> settings = new HashMap<>();
        int session = asked.get("session_ms").asInt();
        settings.put("bootstrap.servers", asked.get("bootstrap").asText());
        settings.put("group.id", asked.get("group").asText());
        settings.put("partition.assignment.strategy", ASSIGNORS.get(asked.get("strategy").asText()));
        settings.put("session.timeout.ms", session);
        settings.put("heartbeat.interval.ms", Math.min(500, session / 3));
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "earliest");
        settings.put("metadata.max.age.ms", 1000);
        settings.put("reconnect.backoff.ms", 20);
        settings.put("reconnect.backoff.max.ms", 200);
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        if (!asked.get("instance").isNull()) {
            settings.put("group.instance.id", asked.get("instance").asText());
        }
        asked.get("settings").fields().forEachRemaining(
                each -> settings.put(each.getKey(), each.getValue().asText()));
        List<String> topics = new ArrayList<>();
        asked.get("topics").forEach(each -> topics.add(each.asText()));

        AtomicBoolean stop = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {}
            } catch (Exception ended) {
                // whatever ends standard input, the test is over
            }
            stop.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(topics, new Listener());
            while (!stop.get()) {
                consume(consumer);
            }
        }
        tell(event("left"));
    }

    private static void consume(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        ObjectNode told = event("records");
        ArrayNode records = told.putArray("records");
        for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
            records.addArray()
                    .add(each.topic())
                    .add(each.partition())
                    .add(each.offset())
                    .add(new String(each.value(), UTF_8));
        }
        if (records.size() > 0) {
            tell(told);
            try {
                consumer.commitSync();
                tell(event("committed"));
            } catch (KafkaException failed) {
                tell(event("error").put("text", failed.toString()));
            }
        }
    }

    private static ObjectNode event(String name) {
        return JSON.createObjectNode().put("event", name);
    }

    private static synchronized void tell(ObjectNode event) throws Exception {
        OUT.println(JSON.writeValueAsString(event));
        OUT.flush();
    }

    private static final class Listener implements ConsumerRebalanceListener {
        private final Set<TopicPartition> owned =
                new TreeSet<>((a, b) -> a.toString().compareTo(b.toString()));

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            owned.removeAll(revoked);
            report();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            owned.addAll(assigned);
            report();
        }

        private void report() {
            ObjectNode told = event("assigned");
            ArrayNode partitions = told.putArray("partitions");
            owned.forEach(each -> partitions.addArray().add(each.topic()).add(each.partition()));
            try {
                tell(told);
            } catch (Exception failed) {
                throw new KafkaException(failed);
            }
        }
    }
}
