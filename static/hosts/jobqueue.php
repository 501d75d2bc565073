<?php
# For PHP programs: a client of jobqueue over HTTP, for PHP 7.4 and newer, without Composer
#
#     require '/home/me/jobqueue/static/hosts/jobqueue.php';
#     $jobs = new JobQueue('https://example.org/jq/', '/home/me/jobqueue/token.txt');
#     $task = $jobs->enqueue('report', ['city' => 'Oslo']);
#     $task = $jobs->wait($task['id']);
#     echo $task['status'];
#
# A task is an array with the fields of GET /api/tasks/ID, see /openapi.json. Each error is a
# JobQueueException. Keep the token outside of the web site's folder.
declare(strict_types=1);

/** An error: an answer of jobqueue, or none. The message is for people, the properties are for programs. */
final class JobQueueException extends RuntimeException
{
    /** HTTP status; 0: there was no answer of jobqueue. */
    public int $status;
    /** The field `code` of the answer, such as "not_found"; or "unreachable", "timeout", "foreign", "invalid". */
    public string $reason;
    /** @var array<array{field: string, message: string}> the wrong fields */
    public array $fields;
    /** Seconds after which the request may be repeated; null: not given. */
    public ?int $retryAfter;

    /** @param array<array{field: string, message: string}> $fields */
    public function __construct(string $message, int $status, string $reason, array $fields = [],
                                ?int $retryAfter = null)
    {
        parent::__construct($message, $status);
        $this->status = $status;
        $this->reason = $reason;
        $this->fields = $fields;
        $this->retryAfter = $retryAfter;
    }
}

/**
 * A site with jobqueue, reached by its address and an API token.
 *
 * A busy site (429, 503) is asked again after Retry-After. A request without an answer is repeated if that is
 * safe: reads are, and adds have an Idempotency-Key, so that each task is added once.
 */
final class JobQueue
{
    private const POLL_SECONDS = [0.2, 0.5, 1, 2, 5];   // pauses of wait(); the last one repeats

    private string $address;
    private string $token;                  // kept out of arguments, which traces show
    private float $timeout;
    private float $patience;
    private bool $isCurl;

    /**
     * @param string $address the page's address, such as https://example.org/jq/
     * @param string $tokenFile the file with the API token
     * @param float $timeout seconds without progress that end a request
     * @param float $patience seconds after which no request is repeated
     */
    public function __construct(string $address, string $tokenFile, float $timeout = 20, float $patience = 60)
    {
        if (!preg_match('~^https?://[^/?#@\s]+(/[^?#\s]*)?$~D', $address)) {
            throw new JobQueueException('The address must be the page\'s, such as https://example.org/jq/, '
                . 'without a name or password.', 0, 'invalid');
        }
        $token = trim((string) @file_get_contents($tokenFile));
        if (!preg_match('/^[!-~]+$/D', $token)) {
            throw new JobQueueException("The token file $tokenFile cannot be read, or holds no API token.", 0,
                'invalid');
        }
        $this->address = rtrim($address, '/');
        $this->token = $token;
        $this->timeout = $timeout;
        $this->patience = $patience;
        $this->isCurl = function_exists('curl_init') && function_exists('curl_exec');
        if (!$this->isCurl && !ini_get('allow_url_fopen')) {
            throw new JobQueueException('PHP needs the extension curl, or allow_url_fopen = On.', 0, 'invalid');
        }
    }

    /**
     * Add a task; return it. If a task with its unique_key is unfinished, return that one.
     *
     * @param array<string, mixed> $arguments by name
     * @param array<string, mixed> $options such as queue, priority, delay, run_at, unique_key, after
     * @param string|null $key an Idempotency-Key of 1 to 200 characters, to repeat the add in a later
     *     request; null: a new one
     * @return array<string, mixed> the task; only its id, if it was removed meanwhile
     */
    public function enqueue(string $function, array $arguments = [], array $options = [],
                            ?string $key = null): array
    {
        return $this->add(['function' => $function, 'arguments' => (object) $arguments] + $options, $key);
    }

    /**
     * Add a task for each row of arguments, all or none; return their ids in this order.
     *
     * @param iterable<array<string, mixed>> $rows
     * @param array<string, mixed> $options of all tasks
     * @return array<int>
     */
    public function enqueueMany(string $function, iterable $rows, array $options = [], ?string $key = null): array
    {
        $tasks = [];
        foreach ($rows as $arguments) {
            $tasks[] = ['function' => $function, 'arguments' => (object) $arguments] + $options;
        }
        return $tasks ? $this->add($tasks, $key)['ids'] : [];
    }

    /** @return array<string, mixed> the task */
    public function get(int $id): array
    {
        return $this->json('GET', "/api/tasks/$id", null, [], true);
    }

    /**
     * Wait until a task has ended; return it. It may have failed: see its status and error.
     *
     * @return array<string, mixed>
     * @throws JobQueueException "timeout" if it has not ended within so many seconds
     */
    public function wait(int $id, float $seconds = 60): array
    {
        $end = microtime(true) + $seconds;
        for ($polls = 0;; $polls++) {
            $task = $this->get($id);
            if (in_array($task['status'], ['succeeded', 'failed', 'cancelled'], true)) {
                return $task;
            }
            $left = $end - microtime(true);
            if ($left <= 0) {
                throw new JobQueueException("Task $id is still {$task['status']} after $seconds s.", 0, 'timeout');
            }
            self::pause(min($left, self::POLL_SECONDS[min($polls, count(self::POLL_SECONDS) - 1)]));
        }
    }

    /**
     * Cancel a task that has not ended; a running one is stopped soon.
     *
     * @return array<string, mixed> the task
     */
    public function cancel(int $id): array
    {
        return $this->json('POST', "/api/tasks/$id/cancel", '{}');
    }

    /** Delete a task with its log and files; a running one is stopped. */
    public function delete(int $id): void
    {
        // As POST: some hosts refuse the method DELETE.
        $this->json('POST', "/api/tasks/$id?as=DELETE", '', [], false, '');
    }

    /**
     * Upload a file; return its id, which is the argument of a parameter with the type Path.
     *
     * @param string|null $name the file's name for people and programs; null: that of the path
     */
    public function upload(string $path, ?string $name = null): string
    {
        $content = @is_file($path) ? @file_get_contents($path) : false;
        if ($content === false) {
            throw new JobQueueException("The file $path cannot be read.", 0, 'invalid');
        }
        $query = http_build_query(['name' => $name ?? basename($path)]);
        return $this->json('POST', "/api/files?$query", $content,
            ['Content-Type: application/octet-stream'], true)['id'];    // an upload without a task is removed
    }

    /** Return the content of a file of a task. Its result names it. */
    public function file(int $id, string $name): string
    {
        return $this->ask('GET', "/api/tasks/$id/files/" . rawurlencode($name), null, [], true);
    }

    /**
     * @param array<mixed> $content
     * @return array<string, mixed>
     */
    private function add(array $content, ?string $key): array
    {
        $key = $key ?? bin2hex(random_bytes(16));
        if (!preg_match('/^[!-~]([ -~]{0,198}[!-~])?$/D', $key)) {
            throw new JobQueueException('The key must have 1 to 200 printable characters.', 0, 'invalid');
        }
        try {
            $body = json_encode($content, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION | JSON_UNESCAPED_UNICODE
                | JSON_UNESCAPED_SLASHES);
        } catch (JsonException $error) {
            throw new JobQueueException('The arguments cannot be written as JSON: ' . $error->getMessage(), 0,
                'invalid');
        }
        return $this->json('POST', '/api/tasks', $body, ['Content-Type: application/json',
            "Idempotency-Key: $key"], true, isset($content[0]) ? 'ids' : 'id');
    }

    /**
     * @param array<string> $headers
     * @return array<string, mixed>
     */
    private function json(string $method, string $path, ?string $body, array $headers = [],
                          bool $isSafe = false, string $wanted = 'id'): array
    {
        $text = $this->ask($method, $path, $body, $headers ?: ['Content-Type: application/json'], $isSafe);
        $answer = $text === '' && $wanted === '' ? [] : json_decode($text, true);
        if (!is_array($answer) || $wanted !== '' && !isset($answer[$wanted])) {
            throw new JobQueueException("$this->address is not the address of a jobqueue.", 0, 'foreign');
        }
        return $answer;
    }

    /**
     * Send a request, and repeat it while that may help; return the body of the answer.
     *
     * @param array<string> $headers
     * @param bool $isSafe whether a request without an answer may be sent again
     */
    private function ask(string $method, string $path, ?string $body, array $headers, bool $isSafe): string
    {
        $end = microtime(true) + $this->patience;
        for ($try = 0;; $try++) {
            [$status, $kind, $retryAfter, $answer] = $this->isCurl
                ? $this->sendByCurl($method, $path, $body, $headers)
                : $this->sendByStream($method, $path, $body, $headers);
            if ($status >= 200 && $status < 300) {
                return $answer;
            }
            $error = $this->refusal($status, $kind, $retryAfter, $answer, $isSafe);
            $isBusy = $status === 429 || $status === 503 && ($isSafe || $error->reason !== 'foreign');
            $isLost = $isSafe && in_array($status, [0, 502, 504], true);
            $pause = max($retryAfter ?? 0, min(8, 0.25 * 2 ** $try));
            if (!$isBusy && !$isLost || microtime(true) + $pause > $end) {
                throw $error;
            }
            self::pause($pause);
        }
    }

    private function refusal(int $status, string $kind, ?int $retryAfter, string $answer,
                             bool $isSafe): JobQueueException
    {
        if ($status === 0) {
            $next = $isSafe ? '' : ' Check whether the request was done before you repeat it.';
            return new JobQueueException("$this->address cannot be reached: $answer.$next", 0, 'unreachable');
        }
        $problem = strpos($kind, 'json') === false ? null : json_decode($answer, true);
        if (!is_array($problem) || ($problem['status'] ?? null) !== $status
            || !is_string($problem['code'] ?? null) || !is_string($problem['detail'] ?? null)) {
            return new JobQueueException("Something in front of $this->address answered with $status.", $status,
                'foreign', [], $retryAfter);
        }
        return new JobQueueException($problem['detail'], $status, $problem['code'],
            (array) ($problem['errors'] ?? []), $retryAfter);
    }

    /**
     * @param array<string> $headers
     * @return array{int, string, int|null, string} status (0: no answer), type, Retry-After, body or why none came
     */
    private function sendByCurl(string $method, string $path, ?string $body, array $headers): array
    {
        $retryAfter = null;
        $link = curl_init($this->address . $path);
        curl_setopt_array($link, [
            CURLOPT_CUSTOMREQUEST => $method, CURLOPT_RETURNTRANSFER => true, CURLOPT_FOLLOWLOCATION => false,
            CURLOPT_HTTPHEADER => array_merge($headers, ["X-Api-Key: $this->token", 'Expect:']),
            CURLOPT_CONNECTTIMEOUT_MS => max(1, (int) ($this->timeout * 1000)),
            CURLOPT_LOW_SPEED_LIMIT => 1024, CURLOPT_LOW_SPEED_TIME => max(1, (int) ceil($this->timeout)),
            CURLOPT_HEADERFUNCTION => function ($link, string $line) use (&$retryAfter): int {
                $retryAfter = self::readRetryAfter($line) ?? $retryAfter;
                return strlen($line);
            }] + ($body === null ? [] : [CURLOPT_POSTFIELDS => $body]));
        $answer = curl_exec($link);
        if ($answer === false) {
            return [0, '', null, curl_error($link)];
        }
        return [curl_getinfo($link, CURLINFO_RESPONSE_CODE),
            (string) curl_getinfo($link, CURLINFO_CONTENT_TYPE), $retryAfter, $answer];
    }

    /**
     * @param array<string> $headers
     * @return array{int, string, int|null, string} see sendByCurl()
     */
    private function sendByStream(string $method, string $path, ?string $body, array $headers): array
    {
        $context = stream_context_create(['http' => [
            'method' => $method, 'header' => array_merge($headers, [
                "X-Api-Key: $this->token", 'Connection: close'], $body === '' ? ['Content-Length: 0'] : []),
            'ignore_errors' => true, 'follow_location' => 0, 'timeout' => $this->timeout,
            'protocol_version' => 1.0] + ($body === null ? [] : ['content' => $body])]);
        $why = [];
        set_error_handler(function (int $level, string $text) use (&$why): bool {
            $why[] = rtrim(preg_replace('/^fopen\(.*?\): /s', '', $text), ' .!');
            return true;
        });
        $stream = fopen($this->address . $path, 'rb', false, $context);
        restore_error_handler();
        if ($stream === false) {
            return [0, '', null, implode('; ', $why)];
        }
        [$status, $kind, $retryAfter, $length] = [0, '', null, null];
        foreach (stream_get_meta_data($stream)['wrapper_data'] as $line) {
            if (preg_match('~^HTTP/\S+ (\d{3})~', $line, $match)) {
                $status = (int) $match[1];
            } elseif (preg_match('/^Content-Type:\s*(.+)$/i', $line, $match)) {
                $kind = $match[1];
            } elseif (preg_match('/^Content-Length:\s*(\d+)/i', $line, $match)) {
                $length = (int) $match[1];
            }
            $retryAfter = self::readRetryAfter($line) ?? $retryAfter;
        }
        $answer = (string) stream_get_contents($stream, $length ?? -1);
        $isWhole = !stream_get_meta_data($stream)['timed_out'] && ($length === null || strlen($answer) >= $length);
        fclose($stream);
        return $isWhole ? [$status, $kind, $retryAfter, $answer] : [0, '', null, 'the answer broke off'];
    }

    private static function readRetryAfter(string $line): ?int
    {
        return preg_match('/^Retry-After:\s*(\d+)/i', $line, $match) ? (int) $match[1] : null;
    }

    private static function pause(float $seconds): void
    {
        usleep((int) ($seconds * 1e6));
    }
}
