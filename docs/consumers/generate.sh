go run github.com/hamba/avro/v2/cmd/avrogen@v2.31.0 -pkg main -fullname \
    -logicaltype local-timestamp-micros,time.Time,time -o classes.go \
    orders-key.avsc orders-value.avsc kinds-key.avsc kinds-value.avsc
