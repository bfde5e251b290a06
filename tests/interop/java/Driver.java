import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Exit;

/**
 * Apache Kafka's client, driven by lines of JSON: one command a line on standard input, its result
 * a line on standard output. tests/interop/drivers/java.py is the other end.
 *
 * <p>A command names its method in "do". Results are {"result": ...} or {"error": {"code", "text"}},
 * with the protocol's code or -1; a consumer tells {"progress": records} in between. Bytes are
 * base64, or null.
 */
public final class Driver {
    private static final long TIMEOUT_MS = 30_000;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final Printed PRINTED = new Printed();
    private static volatile Integer exited;

    private final Map<String, Object> common = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        // Whatever a library prints must not be taken for a result. Scala keeps the stream that it
        // found first, so this one stays and only where it leads to changes.
        System.setOut(new PrintStream(PRINTED, true));
        System.setErr(new PrintStream(PRINTED, true));
        Exit.setExitProcedure((code, message) -> {
            if (exited == null) { // a tool that catches everything exits again, with 1
                exited = code;
            }
            throw new Exited();
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("result", JSON.valueToTree(new Driver().run(JSON.readTree(line))));
            } catch (Exception thrown) {
                Throwable cause = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
                ObjectNode error = answer.putObject("error");
                error.put("code", Errors.forException(cause).code());
                error.put("text", cause.toString());
            }
            tell(answer);
        }
    }

    private static void tell(JsonNode line) throws Exception {
        OUT.println(JSON.writeValueAsString(line));
        OUT.flush();
    }

    private Object run(JsonNode command) throws Exception {
        if (command.has("bootstrap")) {
            common.put("bootstrap.servers", command.get("bootstrap").asText());
        }
        for (Map.Entry<String, JsonNode> each : entries(command.get("settings"))) {
            common.put(each.getKey(), each.getValue().asText());
        }
        switch (command.get("do").asText()) {
            case "version":
                return AppInfoParser.getVersion();
            case "produce":
                return produce(command);
            case "tool":
                return tool(command);
            case "consume":
                return consume(command);
            case "offsets_for_times":
                return offsetsForTimes(command);
            default:
                try (Admin admin = Admin.create(common)) {
                    return administrate(admin, command);
                }
        }
    }

    private List<Long> produce(JsonNode command) throws Exception {
        common.put("key.serializer", ByteArraySerializer.class);
        common.put("value.serializer", ByteArraySerializer.class);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        int chosen = command.get("partition").asInt();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(common)) {
            for (JsonNode record : command.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode header : record.get("headers")) {
                    headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
                }
                sent.add(producer.send(new ProducerRecord<>(
                        command.get("topic").asText(),
                        chosen < 0 ? null : chosen, // null: where the key says
                        record.get("timestamp").isNull() ? null : record.get("timestamp").asLong(),
                        bytes(record.get("key")),
                        bytes(record.get("value")),
                        headers)));
            }
            for (Future<RecordMetadata> each : sent) {
                RecordMetadata metadata = each.get();
                offsets.add(metadata.hasOffset() ? metadata.offset() : -1);
            }
        }
        return offsets;
    }

    private KafkaConsumer<byte[], byte[]> consumer() {
        common.put("key.deserializer", ByteArrayDeserializer.class);
        common.put("value.deserializer", ByteArrayDeserializer.class);
        common.put("enable.auto.commit", false);
        common.putIfAbsent("auto.offset.reset", "none");
        return new KafkaConsumer<>(common);
    }

    private ArrayNode consume(JsonNode command) throws Exception {
        List<TopicPartition> where = new ArrayList<>();
        for (JsonNode number : command.get("partitions")) {
            where.add(new TopicPartition(command.get("topic").asText(), number.asInt()));
        }
        int count = command.get("count").asInt();
        ArrayNode records = JSON.createArrayNode();
        long deadline = System.nanoTime() + TIMEOUT_MS * 1_000_000;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(where);
            where.forEach(each -> consumer.seek(each, command.get("start").asLong()));
            while (records.size() < count) {
                if (System.nanoTime() > deadline) {
                    throw new RuntimeException(records.size() + " of " + count + " records came");
                }
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(500))) {
                    if (records.size() < count) {
                        add(records, each);
                    }
                }
                if (command.get("progress").asBoolean()) {
                    tell(JSON.createObjectNode().put("progress", records.size()));
                }
            }
        }
        return records;
    }

    private static void add(ArrayNode records, ConsumerRecord<byte[], byte[]> each) {
        ObjectNode record = records.addObject();
        record.put("partition", each.partition());
        record.put("offset", each.offset());
        record.put("timestamp", each.timestamp());
        record.put("key", text(each.key()));
        record.put("value", text(each.value()));
        ArrayNode headers = record.putArray("headers");
        for (Header header : each.headers()) {
            headers.addArray().add(header.key()).add(text(header.value()));
        }
    }

    private long offsetsForTimes(JsonNode command) {
        TopicPartition where = partition(command);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            var found = consumer.offsetsForTimes(Map.of(where, command.get("when").asLong()));
            return found.get(where) == null ? -1 : found.get(where).offset();
        }
    }

    private Object administrate(Admin admin, JsonNode command) throws Exception {
        String name = command.path("name").asText();
        switch (command.get("do").asText()) {
            case "create_topic": {
                NewTopic topic = new NewTopic(
                        name,
                        command.get("partitions").asInt(),
                        command.get("replication_factor").shortValue());
                Map<String, String> configs = new HashMap<>();
                for (Map.Entry<String, JsonNode> each : entries(command.get("configs"))) {
                    configs.put(each.getKey(), each.getValue().asText());
                }
                CreateTopicsOptions options =
                        new CreateTopicsOptions().validateOnly(command.get("validate_only").asBoolean());
                var created = admin.createTopics(List.of(topic.configs(configs)), options);
                created.all().get();
                return created.topicId(name).get().toString();
            }
            case "delete_topic":
                admin.deleteTopics(List.of(name)).all().get();
                return null;
            case "delete_topic_by_id":
                admin.deleteTopics(TopicCollection.ofTopicIds(List.of(Uuid.fromString(name)))).all().get();
                return null;
            case "topics":
                return admin.listTopics().names().get();
            case "describe_topic":
                return described(admin.describeTopics(List.of(name)).allTopicNames().get().get(name));
            case "describe_topic_by_id": {
                Uuid id = Uuid.fromString(name);
                var found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id)));
                return described(found.allTopicIds().get().get(id));
            }
            case "create_partitions":
                admin.createPartitions(Map.of(name, NewPartitions.increaseTo(command.get("total").asInt())))
                        .all()
                        .get();
                return null;
            case "configs": {
                ConfigResource resource = resource(command);
                Map<String, String> values = new HashMap<>();
                for (ConfigEntry each :
                        admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()) {
                    values.put(each.name(), each.value());
                }
                return values;
            }
            case "alter_configs": {
                List<AlterConfigOp> changes = new ArrayList<>();
                for (Map.Entry<String, JsonNode> each : entries(command.get("configs"))) {
                    boolean delete = each.getValue().isNull();
                    changes.add(new AlterConfigOp(
                            new ConfigEntry(each.getKey(), delete ? null : each.getValue().asText()),
                            AlterConfigOp.OpType.valueOf(
                                    delete ? "DELETE" : command.get("operation").asText())));
                }
                admin.incrementalAlterConfigs(Map.of(resource(command), changes)).all().get();
                return null;
            }
            case "delete_records": {
                TopicPartition where = partition(command);
                RecordsToDelete before = RecordsToDelete.beforeOffset(command.get("before").asLong());
                var deleted = admin.deleteRecords(Map.of(where, before));
                return deleted.lowWatermarks().get(where).get().lowWatermark();
            }
            case "offset_at": {
                TopicPartition where = partition(command);
                var found = admin.listOffsets(Map.of(where, spec(command.get("when"))));
                return found.partitionResult(where).get().offset();
            }
            case "describe_cluster":
                return cluster(admin.describeCluster());
            case "log_dirs": {
                ArrayNode sizes = JSON.createArrayNode();
                for (var dirs : admin.describeLogDirs(List.of(command.get("broker").asInt()))
                        .allDescriptions()
                        .get()
                        .values()) {
                    for (var dir : dirs.values()) {
                        dir.replicaInfos().forEach((where, replica) -> sizes.addArray()
                                .add(where.topic())
                                .add(where.partition())
                                .add(replica.size()));
                    }
                }
                return sizes;
            }
            default:
                throw new IllegalArgumentException(command.get("do").asText());
        }
    }

    private static ObjectNode described(TopicDescription topic) {
        return JSON.createObjectNode()
                .put("name", topic.name())
                .put("id", topic.topicId().toString())
                .put("partitions", topic.partitions().size());
    }

    private static ObjectNode cluster(DescribeClusterResult found) throws Exception {
        ObjectNode cluster = JSON.createObjectNode();
        cluster.put("id", found.clusterId().get());
        cluster.put("controller", Optional.ofNullable(found.controller().get()).map(Node::id).orElse(-1));
        ObjectNode brokers = cluster.putObject("brokers");
        for (Node node : found.nodes().get()) {
            brokers.put(node.idString(), node.host() + ":" + node.port());
        }
        return cluster;
    }

    private static OffsetSpec spec(JsonNode when) {
        switch (when.asText()) {
            case "earliest":
                return OffsetSpec.earliest();
            case "latest":
                return OffsetSpec.latest();
            case "max_timestamp":
                return OffsetSpec.maxTimestamp();
            default:
                return OffsetSpec.forTimestamp(when.asLong());
        }
    }

    private static ConfigResource resource(JsonNode command) {
        return new ConfigResource(
                ConfigResource.Type.valueOf(command.get("kind").asText()), command.get("name").asText());
    }

    private static TopicPartition partition(JsonNode command) {
        return new TopicPartition(command.get("topic").asText(), command.get("partition").asInt());
    }

    private static List<Map.Entry<String, JsonNode>> entries(JsonNode object) {
        List<Map.Entry<String, JsonNode>> found = new ArrayList<>();
        if (object != null) {
            object.fields().forEachRemaining(found::add);
        }
        return found;
    }

    /** Run the main method of a command line tool as a shell would: its exit code, what it printed. */
    private static ObjectNode tool(JsonNode command) throws Exception {
        List<String> arguments = new ArrayList<>();
        command.get("arguments").forEach(each -> arguments.add(each.asText()));
        InputStream in = System.in;
        System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(UTF_8)));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PRINTED.target = printed;
        exited = null;
        try {
            Class.forName(command.get("main").asText())
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                throw new ExecutionException(thrown.getCause());
            }
        } finally {
            PRINTED.target = null;
            System.setIn(in);
        }
        return JSON.createObjectNode().put("code", exited == null ? 0 : exited).put("printed", printed.toString(UTF_8));
    }

    /** Thrown instead of ending the process; no Exception, or tools would handle it. */
    private static final class Exited extends Error {}

    /** Keeps what a tool prints, and forgets what is printed besides. */
    private static final class Printed extends OutputStream {
        private volatile ByteArrayOutputStream target;

        @Override
        public void write(int each) {
            write(new byte[] {(byte) each}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int start, int count) {
            ByteArrayOutputStream current = target;
            if (current != null) {
                current.write(bytes, start, count);
            }
        }
    }

    private static byte[] bytes(JsonNode base64) {
        return base64.isNull() ? null : Base64.getDecoder().decode(base64.asText());
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
