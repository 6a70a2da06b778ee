//! The plain script that many services run on Redis: a token bucket in a hash of two fields, one
//! limit, no request id.

use redis::aio::ConnectionManager;
use redis::{Client, RedisResult};
use sluicegate::{Clock as _, SystemClock};

use crate::contestant::Contestant;
use crate::protocol::{Decision, Limit};

const SOURCE: &str = r"
local capacity, per_second, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'lastRefill')
local before = tonumber(stored[2]) or now
local earned = math.max(0, now - before) / 1000 * per_second
local tokens = math.min(capacity, (tonumber(stored[1]) or capacity) + earned)
local admitted = tokens >= 1
if admitted then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'lastRefill', now)
redis.call('EXPIRE', KEYS[1], math.ceil(capacity / per_second) * 2)
return admitted and 1 or 0
";

pub(crate) struct Script {
    connection: ConnectionManager,
    script: redis::Script,
}

impl Script {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = Client::open(url).unwrap();
        let connection = client.get_connection_manager().await.unwrap();
        Self { connection, script: redis::Script::new(SOURCE) }
    }
}

impl Contestant for Script {
    type Rules = Vec<Limit>;

    fn rules(&self, limits: &[Limit]) -> Vec<Limit> {
        limits.to_vec()
    }

    async fn ask(&self, key: &str, limits: &Vec<Limit>) -> Decision {
        let [limit] = limits.as_slice() else {
            return Decision::Failed("one limit a call".to_owned());
        };
        let mut call = self.script.key(format!("script:{key}:{}", limit.name));
        call.arg(limit.tokens).arg(f64::from(limit.tokens) / f64::from(limit.seconds));
        call.arg(SystemClock.now().get());
        let answer: RedisResult<i64> = call.invoke_async(&mut self.connection.clone()).await;
        match answer {
            Ok(1) => Decision::Admitted,
            Ok(_) => Decision::Refused,
            Err(error) => Decision::Failed(error.to_string()),
        }
    }
}
