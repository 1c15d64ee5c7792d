package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

var (
	registry, _ = sr.NewClient(sr.URLs("http://registry:8081"))
	schemas     = map[uint32]avro.Schema{}
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// Decode a key or value into a struct of avrogen's.
func decode(data []byte, record any) {
	id := binary.BigEndian.Uint32(data[1:5])
	if schemas[id] == nil {
		found, err := registry.SchemaByID(context.Background(), int(id))
		check(err)
		schemas[id], err = avro.ParseWithCache(found.Schema, "", &avro.SchemaCache{})
		check(err)
	}
	check(avro.Unmarshal(schemas[id], data[5:], record))
}

func show(record *kgo.Record) {
	if record.Topic == "shop.orders" {
		var key ComAcmeStoreOrdersKey
		decode(record.Key, &key)
		if record.Value == nil {
			fmt.Printf("%s\t%d\tdeleted\n", record.Topic, *key.ID)
			return
		}
		var row ComAcmeStoreOrders
		decode(record.Value, &row)
		name := "-"
		if row.Name != nil {
			name = *row.Name
		}
		at := row.At.UTC().Format("2006-01-02T15:04:05.000Z")
		fmt.Printf("%s\t%d\t%s\t%s\t%s\n", record.Topic, *row.ID, name, (*row.Price).FloatString(2), at)
		return
	}
	var key ComAcmeStoreKindsKey
	decode(record.Key, &key)
	var row ComAcmeStoreKinds
	decode(record.Value, &row)
	fmt.Printf("%s\t%d\t%v\n", record.Topic, *key.ID, row.C27)
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
		fetches.EachRecord(show)
	}
}
