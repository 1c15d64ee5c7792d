use std::time::Duration;

use apache_avro::types::Value;
use chrono::{DateTime, SecondsFormat};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use schema_registry_converter::blocking::avro::AvroDecoder;
use schema_registry_converter::blocking::schema_registry::SrSettings;

/// Return the fields of a key or row without their unions; None for a tombstone.
fn fields(value: Value) -> Option<Vec<(String, Value)>> {
    let Value::Record(fields) = value else { return None };
    let inner = |value| if let Value::Union(_, value) = value { *value } else { value };
    Some(fields.into_iter().map(|(name, value)| (name, inner(value))).collect())
}

/// Format a decimal of scale 2: the schema has the scale, the value does not.
fn decimal(value: &apache_avro::Decimal) -> String {
    let bytes = Vec::<u8>::try_from(value).unwrap();
    let sign = if bytes.first().is_some_and(|first| first & 0x80 != 0) { -1 } else { 0 };
    let unscaled = bytes.iter().fold(sign, |number: i128, byte| number << 8 | i128::from(*byte));
    let minus = if unscaled < 0 { "-" } else { "" };
    format!("{minus}{}.{:02}", unscaled.abs() / 100, unscaled.abs() % 100)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Int(number) => number.to_string(),
        Value::Long(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Decimal(number) => decimal(number),
        Value::TimestampMicros(at) => {
            DateTime::from_timestamp_micros(*at).unwrap().to_rfc3339_opts(SecondsFormat::Millis, true)
        }
        other => format!("{other:?}"),
    }
}

fn main() {
    let decoder = AvroDecoder::new(SrSettings::new("http://registry:8081".into()));
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", "kafka:9092")
        .set("group.id", "rust")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    consumer.subscribe(&["shop.orders", "shop.kinds"]).unwrap();
    let mut waited = 0;
    while waited < 8 {
        let message = match consumer.poll(Duration::from_secs(1)) {
            Some(Ok(message)) => message,
            other => {
                other.inspect(|found| eprintln!("{found:?}"));
                waited += 1;
                continue;
            }
        };
        waited = 0;
        let topic = message.topic();
        let key = fields(decoder.decode(message.key()).unwrap().value).unwrap();
        let id = text(&key[0].1);
        match fields(decoder.decode(message.payload()).unwrap().value) {
            None => println!("{topic}\t{id}\tdeleted"),
            Some(row) if topic == "shop.orders" => {
                let column = |name| text(&row.iter().find(|field| field.0 == name).unwrap().1);
                println!("{topic}\t{id}\t{}\t{}\t{}", column("name"), column("price"), column("at"));
            }
            Some(row) => println!("{topic}\t{id}\t{}", row.len()),
        }
    }
}
