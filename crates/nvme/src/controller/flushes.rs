//! What the handles of all shards know of a device's flushes.
//!
//! A device says once that it has lost what it was to make durable; the next flush may then succeed, and the
//! writes are lost all the same. So after one that failed no flush and no forced write of the device
//! succeeds, whichever host asks, until the device is opened again (C5).

use std::sync::{Arc, OnceLock};

use pinstripe_block::ServiceError;
use pinstripe_runtime::{DeviceError, DeviceErrorKind, FlushTicket, Flushes};

use super::service::told;

/// See the module.
#[derive(Clone)]
pub struct DeviceFlushes(Arc<Inner>);

struct Inner {
    flushes: Flushes,
    is_told: OnceLock<()>,
    tell: Box<dyn Fn(DeviceError) + Send + Sync>,
}

impl DeviceFlushes {
    /// `tell` is called once, with the error of the first one that fails.
    pub fn new(tell: impl Fn(DeviceError) + Send + Sync + 'static) -> Self {
        let (flushes, is_told) = (Flushes::default(), OnceLock::new());
        Self(Arc::new(Inner { flushes, is_told, tell: Box::new(tell) }))
    }

    /// Carries a flush out. Any error may have been a loss.
    pub(super) async fn flush(
        &self,
        flush: impl Future<Output = Result<(), DeviceError>>,
    ) -> Result<(), ServiceError> {
        self.carry_out(flush, |_| true).await?;
        lost(self.0.flushes.failure().await)
    }

    /// Carries a forced write out. The kernel may make it of a write and a flush, so its error may have been
    /// a loss unless it was not even tried. `by_flush`: it does so with this device. Then the data was in the
    /// cache that an older flush may be about to have lost, and waits for that one as a flush does (C33).
    pub(super) async fn force(
        &self,
        write: impl Future<Output = Result<(), DeviceError>>,
        by_flush: bool,
    ) -> Result<(), ServiceError> {
        self.carry_out(write, DeviceErrorKind::may_be_loss).await?;
        lost(if by_flush { self.0.flushes.failure().await } else { self.0.flushes.error() })
    }

    async fn carry_out(
        &self,
        work: impl Future<Output = Result<(), DeviceError>>,
        loses: impl Fn(DeviceErrorKind) -> bool,
    ) -> Result<(), ServiceError> {
        lost(self.0.flushes.error())?;
        let mut under_way = UnderWay { inner: &self.0, ticket: self.0.flushes.begin(), error: None };
        let result = work.await;
        under_way.error = result.err().filter(|error| loses(error.kind));
        result.map_err(told)
    }
}

/// One that isn't over. A connection may end first.
struct UnderWay<'a> {
    inner: &'a Inner,
    ticket: FlushTicket,
    error: Option<DeviceError>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.inner.flushes.end(self.ticket, self.error);
        if let Some(error) = self.error {
            self.inner.is_told.get_or_init(|| (self.inner.tell)(error));
        }
    }
}

fn lost(error: Option<DeviceError>) -> Result<(), ServiceError> {
    error.map_or(Ok(()), |_| Err(ServiceError::Io))
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn of(kind: DeviceErrorKind) -> Result<(), DeviceError> {
        Err(DeviceError::of(kind))
    }

    /// What is ready at once.
    fn at_once<T>(work: impl Future<Output = T>) -> T {
        match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }

    #[test]
    fn after_a_failed_flush_none_of_the_device_succeeds_and_it_is_told_once() {
        for kind in [DeviceErrorKind::Media, DeviceErrorKind::Busy, DeviceErrorKind::NoSpace] {
            let count = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&count);
            let flushes = DeviceFlushes::new(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(at_once(flushes.flush(ready(Ok(())))), Ok(()));
            assert_eq!(at_once(flushes.flush(ready(of(kind)))), Err(told(DeviceError::of(kind))));
            let other = flushes.clone();
            for _ in 0..2 {
                assert_eq!(at_once(other.flush(ready(Ok(())))), Err(ServiceError::Io));
                assert_eq!(at_once(other.force(ready(Ok(())), false)), Err(ServiceError::Io));
            }
            assert_eq!(count.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn a_forced_write_that_failed_may_have_lost_something_unless_it_was_not_tried() {
        for (kind, lost) in [(DeviceErrorKind::Media, true), (DeviceErrorKind::NoSpace, false)] {
            let flushes = DeviceFlushes::new(|_| ());
            assert!(at_once(flushes.force(ready(of(kind)), true)).is_err());
            assert_eq!(at_once(flushes.flush(ready(Ok(())))).is_err(), lost, "{kind:?}");
        }
    }

    #[test]
    fn a_flush_that_ended_well_waits_for_one_that_began_before_and_fails_with_it() {
        let flushes = DeviceFlushes::new(|_| ());
        let earlier = std::cell::Cell::new(None);
        let mut cx = Context::from_waker(Waker::noop());
        let wait = std::future::poll_fn(|_| earlier.get().map_or(Poll::Pending, Poll::Ready));
        let mut first = pin!(flushes.flush(wait));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        let mut second = pin!(flushes.flush(ready(Ok(()))));
        assert!(second.as_mut().poll(&mut cx).is_pending(), "an older one is under way");
        earlier.set(Some(of(DeviceErrorKind::Media)));
        assert_eq!(first.as_mut().poll(&mut cx), Poll::Ready(Err(ServiceError::Io)));
        assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Err(ServiceError::Io)));
    }

    #[test]
    fn a_forced_write_that_is_made_by_a_flush_waits_for_an_older_flush_and_fails_with_it() {
        let flushes = DeviceFlushes::new(|_| ());
        let earlier = std::cell::Cell::new(None);
        let mut cx = Context::from_waker(Waker::noop());
        let wait = std::future::poll_fn(|_| earlier.get().map_or(Poll::Pending, Poll::Ready));
        let mut flush = pin!(flushes.flush(wait));
        assert!(flush.as_mut().poll(&mut cx).is_pending());
        assert_eq!(at_once(flushes.force(ready(Ok(())), false)), Ok(()), "it was in no cache");
        let mut forced = pin!(flushes.force(ready(Ok(())), true));
        assert!(forced.as_mut().poll(&mut cx).is_pending(), "its data was in the cache meanwhile");
        earlier.set(Some(of(DeviceErrorKind::Media)));
        assert_eq!(flush.as_mut().poll(&mut cx), Poll::Ready(Err(ServiceError::Io)));
        assert_eq!(forced.as_mut().poll(&mut cx), Poll::Ready(Err(ServiceError::Io)));
    }

    /// The kernel has more error numbers than kinds.
    #[test]
    fn a_forced_write_that_failed_in_an_unknown_way_may_have_lost_something() {
        let flushes = DeviceFlushes::new(|_| ());
        assert!(at_once(flushes.force(ready(of(DeviceErrorKind::Other)), false)).is_err());
        assert_eq!(at_once(flushes.flush(ready(Ok(())))), Err(ServiceError::Io));
    }
}
