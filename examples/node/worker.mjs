// A worker in Node.js: node worker.mjs jobs.mjs
// It claims jobs of the kinds in jobs.mjs, keeps their leases while they run, and settles how they ended. It also does what
// workers do for all, so it needs no other beside it. What each verb promises stands in docs/sql-contract.md.
import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { Attempt } from './attempt.mjs'
import { claims, has, report, verb } from './verbs.mjs'

const { SCHEDULER_QUEUES = 'default', SCHEDULER_LEASE = 30, SCHEDULER_GRACE = 30, SLOTS = 10 } = process.env
const { kinds } = await import(pathToFileURL(process.argv[2]))
const [me, names, queues, lease] = [randomUUID(), Object.keys(kinds), SCHEDULER_QUEUES.split(','), `${SCHEDULER_LEASE} s`]
const running = new Set() // attempts, from claim until settle has answered
let [dutiesAt, retainAt] = [0, 0]
let drainedBy = Infinity // when what still runs is given back; finite once a signal has come
let alarm = new AbortController() // ends the nap of the main loop
const now = () => performance.now() / 1000 // seconds

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
  let answer
  try {
    answer = await verb('settle', me, `[${attempts.map(({ ending }) => ending)}]`)
  } catch (error) {
    if (!/^(22|54)/.test(error.code)) throw error
    if (attempts.length === 1) attempts[0].fail(error) // PostgreSQL cannot store it: a NUL in a string, say
    for (const attempt of attempts) await settle([attempt])
    return
  }
  for (const id of answer.lost) console.error(`the outcome of job ${id} was refused: its lease had been lost`)
  for (const attempt of attempts) if (!has(answer.busy, attempt)) running.delete(attempt)
  if (answer.busy.length) dutiesAt = now() + 0.05 // somebody holds the row: again soon
  await resolve(answer.parents)
}

async function resolve(parents) {
  while (parents === null || parents.length) ({ parents } = await verb('resolve', parents))
}

async function duties() {
  dutiesAt = now() + 1
  await verb('promote')
  await verb('reap', lease)
  await resolve(null)
  if (now() >= retainAt) retainAt = now() + ((await verb('retain', 500)).more ? 1 : 60)
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
