// Place an order: node submit.mjs ORDER AMOUNT [PRIORITY]
// The order and its jobs are one transaction: all of them exist, or none.
import pg from 'pg'

const [order, amount, priority = 1] = process.argv.slice(2)
const client = new pg.Client(process.env.SCHEDULER_DSN)
await client.connect()
await client.query('CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount numeric CHECK (amount > 0), receipt bigint)')
try {
  await client.query('BEGIN')
  const receipt = await client.query(
    "INSERT INTO scheduler.jobs (kind, payload, priority) VALUES ('send_receipt', $1, $2) RETURNING id",
    [{ order }, priority])
  const job = receipt.rows[0].id
  // submit() can say more than an INSERT: a delay, and the id of the older job where the key is taken.
  await client.query("SELECT scheduler.submit('ask_for_review', $1, $2)",
    [{ order }, { delay: '7 days', depends_on: [job], idempotency_key: `review of ${order}` }])
  await client.query('INSERT INTO orders VALUES ($1, $2, $3)', [order, amount, job])
  await client.query('COMMIT')
  console.log(`order ${order} is placed, job ${job} will send its receipt`)
} catch (error) {
  await client.query('ROLLBACK')
  // A refused job names its field (error.column) and the rule, and the hint says the way out.
  console.error(`order ${order} is not placed: ${error.message}${error.hint ? ` (${error.hint})` : ''}`)
  process.exitCode = 1
} finally {
  await client.end()
}
