import com.acme.store.Orders;
import com.acme.store.OrdersKey;
import io.confluent.kafka.serializers.KafkaAvroDeserializer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.List;
import java.util.Map;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;

public class Consume {
    public static void main(String[] arguments) throws Exception {
        var out = new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8);
        var time = DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);
        Map<String, Object> config = Map.of(
            "bootstrap.servers", "kafka:9092",
            "group.id", "java",
            "auto.offset.reset", "earliest",
            "key.deserializer", KafkaAvroDeserializer.class,
            "value.deserializer", KafkaAvroDeserializer.class,
            "schema.registry.url", "http://registry:8081",
            // Classes that avro-tools has made where there are any, and else GenericRecord.
            "specific.avro.reader", true);
        try (var consumer = new KafkaConsumer<GenericRecord, GenericRecord>(config)) {
            consumer.subscribe(List.of("shop.orders", "shop.kinds"));
            for (int waited = 0; waited < 8; waited++) {
                for (var message : consumer.poll(Duration.ofSeconds(1))) {
                    waited = 0;
                    var key = message.key().get("id");
                    if (message.value() == null) {
                        out.printf("%s\t%s\tdeleted%n", message.topic(), key);
                    } else if (message.value() instanceof Orders order) {
                        var id = ((OrdersKey) message.key()).getId();
                        var name = order.getName() == null ? "-" : order.getName();
                        out.printf("%s\t%s\t%s\t%s\t%s%n", message.topic(), id, name, order.getPrice(), time.format(order.getAt()));
                    } else {
                        out.printf("%s\t%s\t%d%n", message.topic(), key, message.value().getSchema().getFields().size());
                    }
                }
            }
        }
    }
}
