//! A contestant that waits for a server: its tasks share a runtime.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::protocol::{Decision, Limit, Order, Tally, Turn};

/// A rate limiter.
pub(crate) trait Contestant: Send + Sync + 'static {
    /// The limits of an order in the form of the limiter.
    type Rules: Send + Sync + 'static;

    fn rules(&self, limits: &[Limit]) -> Self::Rules;

    /// Asks once, for a token of each limit.
    fn ask(&self, key: &str, rules: &Self::Rules) -> impl Future<Output = Decision> + Send;
}

/// Carries out an order in tasks of the current runtime.
pub(crate) async fn carry_out<C: Contestant>(contestant: &Arc<C>, order: &Arc<Order>) -> Tally {
    let rules = Arc::new(contestant.rules(&order.limits));
    let turn = Arc::new(Turn::new(order));
    let mut tasks = JoinSet::new();
    for _ in 0..order.tasks {
        let (contestant, rules, turn) = (contestant.clone(), rules.clone(), turn.clone());
        tasks.spawn(async move {
            let mut tally = Tally::default();
            while let Some(key) = turn.next() {
                let start = Instant::now();
                tally.count(contestant.ask(key, &rules).await);
                tally.time(start.elapsed());
            }
            tally.end(&turn)
        });
    }
    let mut all = Tally::default();
    while let Some(tally) = tasks.join_next().await {
        all.add(tally.unwrap());
    }
    all
}
