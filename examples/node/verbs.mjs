// How a worker speaks to PostgreSQL: it calls verbs, the functions of the schema `scheduler`, each a transaction of its own.
import pg from 'pg'

const pool = new pg.Pool({ connectionString: process.env.SCHEDULER_DSN, application_name: 'scheduler-worker node', max: 3,
  connectionTimeoutMillis: 5000, query_timeout: 10_000 })
pool.on('error', report) // an idle connection has ended; without a listener that would end the process

export function report(error) {
  console.error(`trying again: ${error.message || error.code}`)
}

// The one value that a verb answers with, or its rows.
export async function verb(name, ...args) {
  const { rows } = await pool.query(`SELECT * FROM scheduler.${name}(${args.map((_, i) => `$${i + 1}`)})`, args)
  return rows.length && name in rows[0] ? rows[0][name] : rows
}

// The ids and the fences of attempts, as verbs take them. A bigint is a string in a row, which loses nothing.
export function claims(attempts) {
  return [attempts.map(({ id }) => id), attempts.map(({ fence }) => fence)]
}

// Whether an attempt is among the ids of an answer, which is JSON: there a bigint is a number.
export function has(ids, { id }) {
  return ids.includes(Number(id))
}
