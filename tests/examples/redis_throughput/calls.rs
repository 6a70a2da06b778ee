//! The calls that `redis-benchmark` sends: those of the store, the plain script and an empty one.

use std::fmt::Write as _;
use std::time::Duration;

use sluicegate::redis::{RedisStore, TimeSource};
use sluicegate::settings::Cascade;
use sluicegate::{Limit, Limiter, OnUnavailable};
use sluicegate_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// The script that the store sends.
const ACQUIRE: &str = concat!(
    "local CORRECTS = false\n",
    include_str!("../../../crates/limiter/src/redis/lua/usual.lua"),
    "\n",
    include_str!("../../../crates/limiter/src/redis/lua/bucket.lua"),
    "\n",
    include_str!("../../../crates/limiter/src/redis/lua/acquire.lua"),
    "\n",
);
/// `redis-benchmark` replaces this by another number in every call.
const RANDOM: &str = "__rand_int__";

/// A script and the rest of its call: the number of keys, the keys, the arguments.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    script: String,
    rest: Vec<String>,
}

impl Call {
    fn new(name: &'static str, script: &str, rest: &[&str]) -> Self {
        let rest = rest.iter().map(|&text| text.to_owned()).collect();
        Self { name, script: script.to_owned(), rest }
    }

    /// A script that does nothing, the plain one, and an acquire of one and of five limits.
    pub(crate) async fn all(server: &RedisServer) -> [Self; 4] {
        let plain = include_str!("plain.lua");
        [
            Self::new("an empty script", "return 1", &["1", "empty"]),
            Self::new("the plain script", plain, &["1", "plain", "1000000", "1000000", "1"]),
            Self::acquire(server, "acquire, one limit", 1).await,
            Self::acquire(server, "acquire, five limits", 5).await,
        ]
    }

    /// The store's own call for so many limits, read with the server's `MONITOR`.
    ///
    /// `redis-benchmark` cannot send a zero byte. So an assignment in front of the script holds the
    /// packed request, and an argument of the same length stands in its place.
    async fn acquire(server: &RedisServer, name: &'static str, limits: usize) -> Self {
        let mut monitor = BufReader::new(TcpStream::connect(server.address()).await.unwrap());
        monitor.write_all(b"MONITOR\r\n").await.unwrap();
        let mut lines = monitor.lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "+OK");
        acquire(&limiter(server), name, limits).await;
        let args = loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.contains("\"EVALSHA\"") {
                break quoted(&line);
            }
        };
        let [_, digest, _, key, _, seconds, ask] = args.as_slice() else { panic!("{args:?}") };
        let own = redis::Script::new(ACQUIRE).get_hash().as_bytes().to_vec();
        assert_eq!(*digest, own, "the store sends another script");
        let mut script = "ARGV[3] = '".to_owned();
        ask.iter().for_each(|byte| _ = write!(script, "\\{byte:03}"));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let stand_in = "x".repeat(ask.len());
        let rest = ["1", &text(key), RANDOM, &text(seconds), &stand_in];
        Self::new(name, &(script + "'\n" + ACQUIRE), &rest)
    }

    pub(crate) fn script(&self) -> &str {
        &self.script
    }

    /// The part of a call after the digest of the script.
    pub(crate) fn rest(&self) -> &[String] {
        &self.rest
    }
}

/// The words of a line of `MONITOR`: `1.5 [0 127.0.0.1:7] "EVALSHA" "a\x00b"`.
fn quoted(line: &str) -> Vec<Vec<u8>> {
    let (mut words, mut word, mut chars) = (Vec::new(), None, line.bytes());
    while let Some(byte) = chars.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (b'\\', Some(word)) => word.push(match chars.next().unwrap() {
                b'x' => {
                    let mut digit = || char::from(chars.next().unwrap()).to_digit(16).unwrap();
                    u8::try_from(16 * digit() + digit()).unwrap()
                }
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                other => other,
            }),
            (byte, Some(word)) => word.push(byte),
            (_, None) => {}
        }
    }
    words
}

/// A limiter with the server's time: refill is counted in every call.
pub(crate) fn limiter(server: &RedisServer) -> Limiter {
    Limiter::builder(RedisStore::new(server.url()).unwrap().time(TimeSource::Server))
        .cascade(Cascade::No)
        .deadline(Duration::from_secs(30))
        .on_unavailable(OnUnavailable::Deny)
        .build()
}

/// One acquire of so many limits.
pub(crate) async fn acquire(limiter: &Limiter, entity: &str, limits: usize) {
    let names: Vec<_> = (0..limits).map(|n| format!("limit-{n}")).collect();
    let ask = limiter.acquire(entity, "gpt-4");
    let ask = names.iter().fold(ask, |ask, name| ask.consume(name, 1));
    ask.limits(names.iter().map(|name| Limit::per_second(name, 1_000_000))).await.unwrap();
}
