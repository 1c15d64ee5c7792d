const { Kafka } = require("kafkajs")
const avro = require("avsc")

class Decimal extends avro.types.LogicalType {
  constructor(schema, options) { super(schema, options); this.scale = schema.scale || 0 }
  _fromValue(bytes) {
    const number = bytes.length ? BigInt.asIntN(8 * bytes.length, BigInt("0x" + bytes.toString("hex"))) : 0n
    const digits = (number < 0n ? -number : number).toString().padStart(this.scale + 1, "0")
    const at = digits.length - this.scale
    return (number < 0n ? "-" : "") + digits.slice(0, at) + (this.scale ? "." + digits.slice(at) : "")
  }
}
// A JavaScript number is exact only up to 2^53.
const long = avro.types.LongType.__with({
  fromBuffer: (buffer) => buffer.readBigInt64LE(),
  toBuffer: (number) => { const b = Buffer.alloc(8); b.writeBigInt64LE(number); return b },
  fromJSON: BigInt, toJSON: Number, isValid: (n) => typeof n === "bigint", compare: (a, b) => (a < b ? -1 : a > b ? 1 : 0),
})
const options = {
  typeHook: (schema) => (schema === "long" || schema.type === "long" ? long : undefined),
  logicalTypes: { decimal: Decimal },
  wrapUnions: false,
}
const types = {}
async function decode(data) {
  if (data === null) return null
  const id = data.readUInt32BE(1)
  types[id] ??= fetch(`http://registry:8081/schemas/ids/${id}`).then((answer) => answer.json()).then(({ schema }) =>
    avro.Type.forSchema(JSON.parse(schema), options))
  return (await types[id]).fromBuffer(data.subarray(5))
}

const consumer = new Kafka({ brokers: ["kafka:9092"], logLevel: 2 }).consumer({ groupId: "shop-node" })
let last = Date.now()
async function main() {
  await consumer.connect()
  await consumer.subscribe({ topics: ["shop.orders", "shop.kinds"], fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ topic, message }) => {
      last = Date.now()
      const key = await decode(message.key), row = await decode(message.value)
      if (row === null) console.log([topic, key.id, "deleted"].join("\t"))
      else if (topic === "shop.orders") {
        const at = new Date(Number(row.at / 1000n)).toISOString()
        console.log([topic, key.id, row.name ?? "-", row.price, at].join("\t"))
      } else console.log([topic, key.id, Object.keys(row).length].join("\t"))
    },
  })
  setInterval(async () => {
    if (Date.now() - last > 8000) { await consumer.disconnect(); process.exit() }
  }, 500)
}
main()
