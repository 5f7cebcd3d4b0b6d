// What this worker runs. Beside run(job, signal) stand the kind's options, as the verb `declare` knows them; times in seconds.
import { setTimeout as sleep } from 'node:timers/promises'

export const kinds = {
  send_receipt: {
    timeout: 60,
    max_attempts: 5,
    // A job may run again after a crash: let the effect be idempotent, or refuse a fence older than one seen.
    async run({ payload, attempt }, signal) {
      await sleep(100, null, { signal }) // the mail server; it hears when the attempt is to stop
      return { order: payload.order, attempt }
    },
  },
  ask_for_review: {
    async run({ payload }) {
      if (!payload.order) throw Object.assign(new Error('which order?'), { retryable: false })
    },
  },
}
