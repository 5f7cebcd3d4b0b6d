// One attempt of one job: it runs the handler and notes how it ended. It knows no database.
export class Attempt {
  #stop = new AbortController()
  ending // one element of settle's outcomes, as JSON; unset while it runs, and for ever when it is lost or released

  constructor(job, leasedAt) {
    const { id, fence } = job
    Object.assign(this, { id, fence, leasedAt, job }) // leasedAt: when the claim, or the newest renewal, was sent
  }

  // As timed_out or cancelled, which are outcomes; as lost or released: then the job is somebody else's.
  stop(reason) {
    this.#stop.abort(reason)
  }

  // The signal ends an attempt even if its handler does not listen; then the handler's code runs on.
  async run(handler) {
    const { signal } = this.#stop
    const stopped = new Promise((_, reject) => signal.addEventListener('abort', reject))
    const timer = setTimeout(() => this.stop('timed_out'), Math.min(this.job.timeout * 1000, 2 ** 31 - 1))
    try {
      this.#end('completed', { result: await Promise.race([handler(this.job, signal), stopped]) })
    } catch (thrown) {
      if (!signal.aborted) this.fail(thrown instanceof Error ? thrown : new Error(String(thrown)))
      else if (['timed_out', 'cancelled'].includes(signal.reason)) this.#end(signal.reason)
      else console.error(`job ${this.id} is ${signal.reason}, attempt ${this.job.attempt} is stopped`)
    }
    clearTimeout(timer)
  }

  // An error may carry retryable (false: never again) and delay (seconds, instead of the backoff).
  fail({ name, message, stack, retryable, delay }) {
    const facts = { error_type: name, error: message, traceback: stack, retryable: retryable !== false }
    this.#end('failed', { ...facts, delay: Number(delay) })
  }

  #end(outcome, facts) {
    this.ending = JSON.stringify({ id: this.id, fence: this.fence, outcome, ...facts })
  }
}
