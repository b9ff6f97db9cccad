//! Questions to a shard, which one that hangs does not answer.

use std::sync::Arc;

use tokio::sync::watch;

/// The questions to a shard, by number.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    asked: watch::Sender<u64>,
    answered: watch::Sender<u64>,
}

impl Probe {
    /// Answers, as a task of the shard.
    pub(crate) async fn answer(self: Arc<Self>) {
        let mut asked = self.asked.subscribe();
        loop {
            self.answered.send_replace(*asked.borrow_and_update());
            if asked.changed().await.is_err() {
                return;
            }
        }
    }

    /// Asks, and completes when the shard has answered.
    pub(crate) async fn ask(&self) {
        let (mut number, mut answered) = (0, self.answered.subscribe());
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        // The sender is `self`.
        drop(answered.wait_for(|answer| *answer >= number).await);
    }
}
