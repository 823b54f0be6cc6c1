//! What this process tells the service manager that has started it: sd_notify(3), understood by systemd and
//! others. Without one (no `NOTIFY_SOCKET` in the environment) nothing is told.
//!
//! A server's signs of life come from all of its shards: each is asked, and only when the last one has
//! answered is the next sign given. Members play no part in it. A shard doesn't wait for a member's request
//! but turns on, so a server with slow members lives, and one with a shard that has stopped turning doesn't.

use std::{cell::Cell, rc::Rc, time::Duration};

use pinstripe_control::text::printable;
use pinstripe_runtime::{ShardHandle, shard};
use sd_notify::NotifyState;

use crate::on_shards::on_shards;

/// What a sign of life adds to the time that a start or an end may take.
const EXTENSION: Duration = Duration::from_mins(1);
/// Between two signs, if the watchdog doesn't want more.
const INTERVAL: Duration = Duration::from_secs(10);

/// Whether there is one.
pub fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Errors are of no account: the manager sees by itself when nothing comes.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

fn extension(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

/// What the process does, for `systemctl status`.
pub fn tell_status(words: &str) {
    tell(&[NotifyState::Status(&printable(words))]);
}

/// Another process is the service from now on.
pub fn tell_main(process: u32) {
    tell(&[NotifyState::MainPid(process)]);
}

/// It has begun.
pub fn tell_ready() {
    tell(&[NotifyState::Ready]);
}

/// It turns: for a process whose only loop calls this.
pub fn tell_alive() {
    if sd_notify::watchdog_enabled().is_some() {
        tell(&[NotifyState::Watchdog]);
    }
}

/// It waits for something before it can start.
pub fn tell_waiting(words: &str) {
    tell(&[NotifyState::Status(&printable(words)), extension(EXTENSION)]);
}

/// What a server is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Starting,
    Serving,
    Stopping,
}

impl Stage {
    /// A sign of life: a start and an end need time, a server that serves is watched. That one is given time,
    /// too: the unit may be stopping while clients are still served. No more than the watchdog's, which would
    /// wait longer otherwise.
    fn sign(self, watchdog: Option<Duration>) -> Vec<NotifyState<'static>> {
        match self {
            Self::Starting | Self::Stopping => vec![extension(EXTENSION)],
            Self::Serving => vec![
                NotifyState::Watchdog,
                extension(watchdog.map_or(EXTENSION, |limit| limit.min(EXTENSION))),
            ],
        }
    }
}

/// A server as its service manager sees it. Lives on shard 0.
pub struct Supervised(Rc<Cell<Stage>>);

impl Supervised {
    /// Gives signs of life from now on, as long as all shards turn.
    /// `serves`: clients wait for it already, so it is watched.
    pub fn begin(shards: &[ShardHandle], serves: bool) -> Self {
        let stage = Rc::new(Cell::new(if serves { Stage::Serving } else { Stage::Starting }));
        if is_there() {
            let (stage, watchdog) = (Rc::clone(&stage), sd_notify::watchdog_enabled());
            let give = move || tell(&stage.get().sign(watchdog));
            shard::spawn(signs(shards.to_vec(), pause(watchdog), give));
        }
        Self(stage)
    }

    /// It answers.
    pub fn ready(&self) {
        self.0.set(Stage::Serving);
        tell(&[NotifyState::Ready]);
    }

    /// It ends.
    pub fn stopping(&self) {
        self.0.set(Stage::Stopping);
        tell(&[NotifyState::Stopping, NotifyState::Status("stopping"), extension(EXTENSION)]);
    }
}

/// Gives a sign of life again and again, each when all shards have turned since the last one.
async fn signs(shards: Vec<ShardHandle>, pause: Duration, give: impl Fn()) {
    loop {
        on_shards(&shards, || async {}).await;
        give();
        shard::sleep(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX)).await;
    }
}

/// Between two signs of life: so many that the watchdog may miss some.
fn pause(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(INTERVAL, |limit| INTERVAL.min(limit / 4))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    };

    use pinstripe_runtime::uring::{RuntimeConfig, run};

    use super::*;

    #[test]
    fn the_watchdog_may_miss_some_signs_and_a_start_never_needs_it() {
        assert_eq!(pause(None), INTERVAL);
        assert_eq!(pause(Some(Duration::from_mins(10))), INTERVAL);
        assert_eq!(pause(Some(Duration::from_secs(8))), Duration::from_secs(2));
        for stage in [Stage::Starting, Stage::Stopping] {
            let sign = stage.sign(Some(Duration::from_secs(8)));
            assert!(matches!(sign[..], [NotifyState::ExtendTimeoutUsec(60_000_000)]), "{stage:?}");
        }
    }

    #[test]
    fn a_server_that_serves_gives_the_end_of_its_unit_time_and_the_watchdog_none() {
        let time = |watchdog: Option<u64>| match Stage::Serving.sign(watchdog.map(Duration::from_secs))[..] {
            [NotifyState::Watchdog, NotifyState::ExtendTimeoutUsec(time)] => time,
            _ => panic!("a watchdog has to be told, and how long to wait"),
        };
        assert_eq!((time(None), time(Some(8)), time(Some(600))), (60_000_000, 8_000_000, 60_000_000));
    }

    #[test]
    fn a_shard_that_does_not_turn_keeps_signs_of_life_back() {
        let (go_on, stands) = channel::<()>();
        let (before, meanwhile, after) = run(&RuntimeConfig::unpinned(2), |context| async move {
            let shards = context.shards().to_vec();
            let given = Rc::new(Cell::new(0_u32));
            let count = Rc::clone(&given);
            let give = move || count.set(count.get() + 1);
            shard::spawn(signs(shards.clone(), Duration::from_millis(5), give));
            let take = async |nanoseconds| {
                shard::sleep(nanoseconds).await;
                given.replace(0)
            };
            // A busy machine lets both shards turn now and then.
            let some = async || {
                let mut some = 0;
                for _ in 0..6000 {
                    some += take(10_000_000).await;
                    if some > 3 {
                        break;
                    }
                }
                some
            };
            let before = some().await;
            let (standing, stood) = (Arc::new(AtomicBool::new(false)), Ordering::Relaxed);
            let stand = Arc::clone(&standing);
            shards[1].send(move || {
                stand.store(true, stood);
                stands.recv().unwrap_or_default();
            });
            while !standing.load(stood) {
                shard::sleep(1_000_000).await;
            }
            // The answer to the last question may be on its way.
            take(20_000_000).await;
            let meanwhile = take(300_000_000).await;
            let _ = go_on.send(());
            (before, meanwhile, some().await)
        })
        .unwrap();
        assert!(before > 3 && meanwhile == 0 && after > 3, "{before}, {meanwhile}, {after}");
    }
}
