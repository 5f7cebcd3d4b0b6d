// A worker in Node.js: node worker.mjs jobs.mjs
// It claims jobs of the kinds in jobs.mjs, keeps their leases while they run, and settles how they ended. It also does what
// workers do for all, so it needs no other beside it. What each verb promises stands in docs/sql-contract.md.
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { Attempt } from './attempt.mjs'

const { SCHEDULER_DSN, SCHEDULER_QUEUES = 'default', SCHEDULER_LEASE = 30, SCHEDULER_GRACE = 30, SLOTS = 10 } = process.env
const { kinds } = await import(pathToFileURL(process.argv[2]))
const [me, names, queues, lease] = [randomUUID(), Object.keys(kinds), SCHEDULER_QUEUES.split(','), `${SCHEDULER_LEASE} s`]
const running = new Set() // attempts, from claim until settle has answered
let dutiesAt = 0
let drainedBy = Infinity // when what still runs is given back; finite once a signal has come
let alarm = new AbortController() // ends the nap of the main loop

const pool = new pg.Pool({ connectionString: SCHEDULER_DSN, application_name: 'scheduler-worker node', max: 3,
  connectionTimeoutMillis: 5000, query_timeout: SCHEDULER_LEASE * 500 })
const report = (error) => console.error(`trying again: ${error.message || error.code}`)
pool.on('error', report) // an idle connection has ended

async function verb(name, ...args) {
  const { rows } = await pool.query(`SELECT * FROM scheduler.${name}(${args.map((_, i) => `$${i + 1}`)})`, args)
  return rows.length && name in rows[0] ? rows[0][name] : rows
}

const now = () => performance.now() / 1000 // seconds
const has = (ids, { id }) => ids.includes(Number(id)) // a bigint is a string in a row and a number in JSON
const claims = (attempts) => [attempts.map(({ id }) => id), attempts.map(({ fence }) => fence)]

async function claim() {
  queues.push(queues.shift()) // each is the first in its turn
  const sent = now()
  for (const job of await verb('claim', me, randomUUID(), queues, names, SLOTS - running.size, lease)) {
    if (job.id !== null) start(new Attempt(job, sent))
    else if (job.next_in !== null) dutiesAt = Math.min(dutiesAt, now() + Math.max(job.next_in, 0.02))
  }
}

async function start(attempt) {
  for (const older of running) if (older.id === attempt.id) older.stop('lost')
  running.add(attempt)
  await attempt.run(kinds[attempt.job.kind].run)
  if (!attempt.ending) running.delete(attempt)
  alarm.abort()
}

// By our own clock a lease counts from when it was asked for, and ends early: who is late has lost it without being told.
async function renew() {
  const sent = now()
  const isHeld = ({ leasedAt }) => sent - leasedAt < 0.7 * SCHEDULER_LEASE
  for (const attempt of running) if (!isHeld(attempt)) attempt.stop('lost')
  const held = [...running].filter(isHeld)
  const { lost, cancel, busy } = await verb('renew', me, ...claims(held), lease)
  for (const attempt of held) {
    if (has(lost, attempt)) attempt.stop('lost')
    if (has(cancel, attempt)) attempt.stop('cancelled')
    if (!has(busy, attempt)) attempt.leasedAt = sent
  }
}

async function settle(attempts) {
  const { lost, busy, parents } = await verb('settle', me, `[${attempts.map(({ ending }) => ending)}]`)
  for (const id of lost) console.error(`the outcome of job ${id} was refused: its lease had been lost`)
  for (const attempt of attempts) if (!has(busy, attempt)) running.delete(attempt)
  if (busy.length) dutiesAt = now() + 0.05 // somebody holds the row: again soon
  await resolve(parents)
}

async function resolve(parents) {
  while (parents === null || parents.length) ({ parents } = await verb('resolve', parents))
}

async function duties() {
  dutiesAt = now() + 1
  await verb('promote')
  await verb('reap', lease)
  await resolve(null)
}

function drain() {
  console.error('draining')
  drainedBy = now() + Number(SCHEDULER_GRACE)
  alarm.abort()
}

for (const kind of names) await verb('declare', JSON.stringify([{ kind, ...kinds[kind] }]))
await verb('register', me, { host: hostname(), pid: process.pid, version: `node ${process.version}`, queues, kinds: names,
  slots: { node: Number(SLOTS) }, channel: `scheduler_${me.replaceAll('-', '')}` })
for (const signal of ['SIGTERM', 'SIGINT']) process.once(signal, drain)
setInterval(() => renew().catch(report), SCHEDULER_LEASE * 200)
console.error(`worker ${me} runs ${names} from ${queues}`)

while (drainedBy === Infinity || (running.size && now() < drainedBy)) {
  try {
    const ended = [...running].filter(({ ending }) => ending)
    if (ended.length) await settle(ended)
    if (now() >= dutiesAt) await duties()
    if (drainedBy === Infinity && running.size < SLOTS) await claim()
  } catch (error) {
    report(error)
    dutiesAt = now() + 1
  }
  await sleep(Math.max(Math.min(dutiesAt, drainedBy) - now(), 0) * 1000, null, { signal: alarm.signal }).catch(() => {})
  alarm = new AbortController()
}

const left = [...running]
for (const attempt of left) attempt.stop('released')
await verb('release', me, ...claims(left))
await verb('deregister', me)
process.exit()
