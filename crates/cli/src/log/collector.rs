//! What `tracing` hands entries to. There are no spans: what all entries of a process say is in its context.

use std::{
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};

use super::{queue::Queue, record::Record};
use crate::command_line::LogLevel;

/// So that nothing outside can know which entries share a key.
static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// See the module.
pub struct Collector {
    pub level: LogLevel,
    pub queue: Arc<Queue>,
}

impl Collector {
    fn most(&self) -> Level {
        match self.level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warning => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        }
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Other crates' entries are not made to be read by users.
        metadata.is_event() && *metadata.level() <= self.most() && metadata.target().starts_with("pinstripe")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most().into())
    }

    fn event(&self, event: &Event<'_>) {
        self.queue.offer(key(event), || Record::of(event));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// By what entries are the same: from one place, about the same things. Not the sentence, nor a client's
/// name.
struct Key(DefaultHasher);

fn key(event: &Event<'_>) -> u64 {
    let mut key = Key(STATE.build_hasher());
    event.metadata().callsite().hash(&mut key.0);
    event.record(&mut key);
    key.0.finish()
}

impl Key {
    fn take(&mut self, field: &Field, value: &impl Hash) {
        if matches!(field.name(), "file" | "line" | "array" | "event" | "member" | "slot") {
            (field.name(), value).hash(&mut self.0);
        }
    }
}

impl Visit for Key {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, &value);
    }

    /// None of these is part of the key, and a flood shall not cost their formatting.
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
