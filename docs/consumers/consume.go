package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/big"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/linkedin/goavro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

var (
	registry, _ = sr.NewClient(sr.URLs("http://registry:8081"))
	schemas     = map[uint32]avro.Schema{}
	codecs      = map[uint32]*goavro.Codec{}
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Decode a key or value with both libraries.
func decode(data []byte) (withHamba, withGoavro map[string]any) {
	if data == nil {
		return nil, nil
	}
	id := binary.BigEndian.Uint32(data[1:5])
	if schemas[id] == nil {
		found, err := registry.SchemaByID(context.Background(), int(id))
		check(err)
		// A cache for each: two tables may have records of one name.
		schemas[id], err = avro.ParseWithCache(found.Schema, "", &avro.SchemaCache{})
		check(err)
		codecs[id], err = goavro.NewCodec(found.Schema)
		check(err)
	}
	check(avro.Unmarshal(schemas[id], data[5:], &withHamba))
	native, _, err := codecs[id].NativeFromBinary(data[5:])
	check(err)
	return withHamba, native.(map[string]any)
}

// A union's value: goavro has a map of its branch's name to it.
func inner(value any) any {
	if branch, isUnion := value.(map[string]any); isUnion {
		for _, value := range branch {
			return value
		}
	}
	return value
}

func show(library, topic string, key, row map[string]any) {
	id := inner(key["id"])
	switch {
	case row == nil:
		fmt.Printf("%s\t%s\t%v\tdeleted\n", library, topic, id)
	case topic == "shop.orders":
		name := inner(row["name"])
		if name == nil {
			name = "-"
		}
		price := inner(row["price"]).(*big.Rat).FloatString(2)
		at := inner(row["at"]).(time.Time).UTC().Format("2006-01-02T15:04:05.000Z")
		fmt.Printf("%s\t%s\t%v\t%v\t%s\t%s\n", library, topic, id, name, price, at)
	default:
		fmt.Printf("%s\t%s\t%v\t%d\n", library, topic, id, len(row))
	}
}

func main() {
	client, err := kgo.NewClient(kgo.SeedBrokers("kafka:9092"), kgo.ConsumeTopics("shop.orders", "shop.kinds"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	for {
		wait, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		fetches := client.PollFetches(wait)
		cancel()
		if fetches.NumRecords() == 0 {
			return
		}
		fetches.EachRecord(func(record *kgo.Record) {
			key, keyToo := decode(record.Key)
			row, rowToo := decode(record.Value)
			show("hamba", record.Topic, key, row)
			show("goavro", record.Topic, keyToo, rowToo)
		})
	}
}
