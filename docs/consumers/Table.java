import com.acme.store.Orders;
import com.acme.store.OrdersKey;
import io.confluent.kafka.serializers.KafkaAvroDeserializer;
import io.confluent.kafka.serializers.KafkaAvroSerializer;
import java.nio.charset.StandardCharsets;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;

public class Table {
    static final AtomicLong last = new AtomicLong(System.currentTimeMillis());

    static Serde<Object> avro(boolean isKey) {
        var serde = Serdes.serdeFrom(new KafkaAvroSerializer(), new KafkaAvroDeserializer());
        serde.configure(Map.of("schema.registry.url", "http://registry:8081", "specific.avro.reader", true), isKey);
        return serde;
    }

    public static void main(String[] arguments) throws Exception {
        var out = new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8);
        var time = DateTimeFormatter.ofPattern("yyyy-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);
        var config = new Properties();
        config.put("application.id", "shop-streams");
        config.put("bootstrap.servers", "kafka:9092");
        config.put("state.dir", "state");
        // The topic is the table's changelog: no second one is made of it. And every change is seen.
        config.put("topology.optimization", "all");
        config.put("statestore.cache.max.bytes", 0);
        var builder = new StreamsBuilder();
        var avro = Consumed.with(avro(true), avro(false));
        builder.table("shop.orders", avro).toStream().foreach((key, row) -> {
            last.set(System.currentTimeMillis());
            var id = ((OrdersKey) key).getId();
            if (row == null) {
                out.printf("shop.orders\t%s\tdeleted%n", id);
            } else {
                var order = (Orders) row;
                var name = order.getName() == null ? "-" : order.getName();
                out.printf("shop.orders\t%s\t%s\t%s\t%s%n", id, name, order.getPrice(), time.format(order.getAt()));
            }
        });
        builder.stream("shop.kinds", avro).foreach((key, row) -> {
            last.set(System.currentTimeMillis());
            var fields = ((GenericRecord) row).getSchema().getFields().size();
            out.printf("shop.kinds\t%s\t%d%n", ((GenericRecord) key).get("id"), fields);
        });
        var topology = builder.build(config);
        try (var streams = new KafkaStreams(topology, config)) {
            streams.start();
            while (System.currentTimeMillis() - last.get() < 20_000 && !streams.state().hasCompletedShutdown()) {
                Thread.sleep(500);
            }
        }
    }
}
