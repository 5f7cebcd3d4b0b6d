<?php
// Place an order: php submit.php ORDER AMOUNT [PRIORITY]
// The order and its jobs are one transaction: all of them exist, or none.
declare(strict_types=1);

[, $order, $amount] = $argv;
$priority = $argv[3] ?? 1;
$db = pg_connect(getenv('SCHEDULER_DSN'));

// The result of a statement; an exception with PostgreSQL's message and hint when it is refused.
$query = function (string $sql, mixed ...$values) use ($db): PgSql\Result {
    pg_send_query_params($db, $sql, $values);
    $result = pg_get_result($db);
    if (pg_result_error($result)) {
        // A refused job names its field (PGSQL_DIAG_COLUMN_NAME) and the rule, and the hint says the way out.
        $hint = pg_result_error_field($result, PGSQL_DIAG_MESSAGE_HINT);
        throw new RuntimeException(pg_result_error_field($result, PGSQL_DIAG_MESSAGE_PRIMARY) . ($hint ? " ($hint)" : ''));
    }
    return $result;
};

$query("SET client_min_messages = warning");
$query('CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount numeric CHECK (amount > 0), receipt bigint)');
try {
    $query('BEGIN');
    $payload = json_encode(['order' => $order]);
    $job = pg_fetch_result($query(
        "INSERT INTO scheduler.jobs (kind, payload, priority) VALUES ('send_receipt', $1, $2) RETURNING id",
        $payload, $priority), 0);
    // submit() can say more than an INSERT: a delay, and the id of the older job where the key is taken.
    $query("SELECT scheduler.submit('ask_for_review', $1, $2)", $payload,
        json_encode(['delay' => '7 days', 'depends_on' => [$job], 'idempotency_key' => "review of $order"]));
    $query('INSERT INTO orders VALUES ($1, $2, $3)', $order, $amount, $job);
    $query('COMMIT');
    echo "order $order is placed, job $job will send its receipt\n";
} catch (RuntimeException $error) {
    $query('ROLLBACK');
    fwrite(STDERR, "order $order is not placed: {$error->getMessage()}\n");
    exit(1);
}
