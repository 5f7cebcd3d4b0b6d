// The jobs that the tests run in the Node worker: those of tests/worker/jobs.py, by the same names, speaking by the same files.
import { appendFileSync, existsSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

const note = (path, what, job) => appendFileSync(`${path}.${what}`, `${job.attempt} ${process.pid}\n`)
const gate = async (path, signal) => {
  while (!existsSync(`${path}.go`)) await sleep(5, null, { signal })
}

// Waits for a gate, and notes that it was stopped when it was.
async function wait(job, signal, path = job.payload.path) {
  note(path, 'began', job)
  try {
    await gate(path, signal)
  } catch (error) {
    note(path, 'stopped', job)
    throw error
  }
  return job.attempt
}

const deep = (levels) => {
  let value = []
  for (let level = 0; level < levels; level++) value = [value]
  return value
}

const retry = { retry_base: 0.02, retry_cap: 0.1, max_attempts: 3 }

export const kinds = {
  Echo: { run: async ({ payload }) => payload.value },
  Short: { run: () => sleep(50) },
  Wait: { run: wait },
  EachItsGate: { run: (job, signal) => wait(job, signal, `${job.payload.path}-${job.attempt}`) },
  FirstOnly: {
    async run(job, signal) {
      note(job.payload.path, 'began', job)
      if (job.attempt === 1) await gate(job.payload.path, signal)
      return job.attempt
    },
  },
  // Swallows its signal.
  Deaf: {
    async run(job) {
      note(job.payload.path, 'began', job)
      await gate(job.payload.path)
      return 'too late'
    },
  },
  Steer: {
    ...retry,
    run({ attempt, failures, payload: { how, until = 2, seconds } }) {
      if (attempt >= until) return { attempt, failures }
      if (how === 'non_retryable') throw Object.assign(new Error('never'), { retryable: false })
      throw Object.assign(new Error(`failure of attempt ${attempt}`), how === 'retry_after' ? { delay: seconds } : {})
    },
  },
  Unstorable: {
    ...retry,
    run({ payload }) {
      if (payload.what === 'nul') return { 'a\0b': 'c\0d' }
      if (payload.what === 'surrogate') return 'a\ud800b'
      if (payload.what === 'deep') return deep(30_000)
      if (payload.what === 'bigint') return 1n
      if (payload.what === 'circle') throw Object.assign(new Error('round'), { delay: {} })
      if (payload.what === 'huge') return 'x'.repeat(70_000)
      if (payload.what === 'number') throw 5
      throw null
    },
  },
}
