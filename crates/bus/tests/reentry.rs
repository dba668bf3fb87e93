//! User code may use the bus from callbacks, wakers and destructors, because none of it runs under a lock.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use mainstem_bus::{Bus, Overflow, Subscription};

/// A payload whose destructor publishes, subscribes and reads the statistics.
struct UsesBusOnDrop(Option<Bus<UsesBusOnDrop>>);

impl Drop for UsesBusOnDrop {
    fn drop(&mut self) {
        let Some(bus) = self.0.take() else { return };
        // Fails only if the bus is closed.
        let delivered = bus.publish("gone", UsesBusOnDrop(None)).map(|delivered| delivered.delivered).ok();
        assert_eq!(delivered.is_none(), bus.is_closed());
        drop(bus.subscribe("other").mailbox());
        assert!(bus.stats().published > 0);
    }
}

#[test]
fn payload_destructor_may_use_the_bus() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect] {
        let bus = Bus::new();
        let payload = || UsesBusOnDrop(Some(bus.clone()));
        let gone = bus.subscribe("gone").capacity(100).mailbox().unwrap();
        let subscribe = |filter| bus.subscribe(filter).capacity(2).overflow(overflow);
        let (mailbox, cursor) = (subscribe("a").mailbox().unwrap(), subscribe("a").cursor().unwrap());
        let (member, worker) =
            (subscribe("$share/g/a").mailbox().unwrap(), subscribe("$share/g/a").cursor().unwrap());
        for _ in 0..20 {
            bus.publish("a", payload()).unwrap();
        }
        bus.message("a", payload()).retain().publish().unwrap();
        bus.message("a", payload()).retain().publish().unwrap();
        assert!(bus.clear_retained("a"));
        drop((mailbox, cursor, member, worker));
        assert_eq!(gone.stats().lag, 22);
    }
}

#[test]
fn callback_may_drop_its_own_subscription() {
    let bus = Bus::new();
    let own: Arc<Mutex<Option<Subscription<()>>>> = Arc::default();
    let slot = Arc::clone(&own);
    let subscription = bus
        .subscribe("a")
        .callback(move |_| {
            let own = slot.lock().unwrap().take();
            drop(own);
        })
        .unwrap();
    *own.lock().unwrap() = Some(subscription);
    assert_eq!(bus.publish("a", ()).unwrap().delivered, 1);
    assert_eq!(bus.publish("a", ()).unwrap().delivered, 0);
    assert_eq!(Arc::strong_count(&own), 1);
}

/// A waker that subscribes and reads the statistics of the bus.
struct UsesBusOnWake(Bus<u32>, Mutex<Vec<usize>>);

impl Wake for UsesBusOnWake {
    fn wake(self: Arc<Self>) {
        let lag = self.0.stats().in_flight;
        drop(self.0.subscribe("b").mailbox());
        self.1.lock().unwrap().push(lag);
    }
}

#[test]
fn waker_may_use_the_bus() {
    let bus = Bus::new();
    let mut mailbox = pin!(bus.subscribe("a").mailbox().unwrap());
    let wake = Arc::new(UsesBusOnWake(bus.clone(), Mutex::default()));
    let waker = Waker::from(Arc::clone(&wake));
    let mut context = Context::from_waker(&waker);
    assert!(mailbox.as_mut().poll_next(&mut context).is_pending());
    bus.publish("a", 1).unwrap();
    assert!(matches!(mailbox.as_mut().poll_next(&mut context), Poll::Ready(Some(_))));
    assert!(mailbox.as_mut().poll_next(&mut context).is_pending());
    bus.close();
    assert!(matches!(mailbox.as_mut().poll_next(&mut context), Poll::Ready(None)));
    assert_eq!(*wake.1.lock().unwrap(), [1, 0]);
}
