//! Code of the user's that the bus runs, or drops, may use the bus: it runs under no lock.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use mainstem_bus::{Bus, Overflow, Subscription};

/// A value that publishes when it goes, and subscribes, and looks around.
struct Parting(Option<Bus<Parting>>);

impl Drop for Parting {
    fn drop(&mut self) {
        let Some(bus) = self.0.take() else { return };
        // Refused only if the bus is closed.
        let told = bus.publish("gone", Parting(None)).map(|told| told.delivered).ok();
        assert_eq!(told.is_none(), bus.is_closed());
        drop(bus.subscribe("elsewhere").mailbox());
        assert!(bus.stats().published > 0);
    }
}

#[test]
fn a_payload_may_use_the_bus_when_it_is_dropped() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect] {
        let bus = Bus::new();
        let parting = || Parting(Some(bus.clone()));
        let gone = bus.subscribe("gone").capacity(100).mailbox().unwrap();
        let subscribe = |filter| bus.subscribe(filter).capacity(2).overflow(overflow);
        let (mailbox, cursor) = (subscribe("a").mailbox().unwrap(), subscribe("a").cursor().unwrap());
        let (member, worker) =
            (subscribe("$share/g/a").mailbox().unwrap(), subscribe("$share/g/a").cursor().unwrap());
        for _ in 0..20 {
            bus.publish("a", parting()).unwrap();
        }
        bus.message("a", parting()).retain().publish().unwrap();
        bus.message("a", parting()).retain().publish().unwrap();
        assert!(bus.clear_retained("a"));
        drop((mailbox, cursor, member, worker));
        assert_eq!(gone.stats().lag, 22);
    }
}

#[test]
fn a_callback_may_end_its_own_subscription() {
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

/// Looks at the bus when it is woken.
struct Curious(Bus<u32>, Mutex<Vec<usize>>);

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        let lag = self.0.stats().in_flight;
        drop(self.0.subscribe("b").mailbox());
        self.1.lock().unwrap().push(lag);
    }
}

#[test]
fn a_waker_may_use_the_bus() {
    let bus = Bus::new();
    let mut mailbox = pin!(bus.subscribe("a").mailbox().unwrap());
    let curious = Arc::new(Curious(bus.clone(), Mutex::default()));
    let waker = Waker::from(Arc::clone(&curious));
    let mut context = Context::from_waker(&waker);
    assert!(mailbox.as_mut().poll_next(&mut context).is_pending());
    bus.publish("a", 1).unwrap();
    assert!(matches!(mailbox.as_mut().poll_next(&mut context), Poll::Ready(Some(_))));
    assert!(mailbox.as_mut().poll_next(&mut context).is_pending());
    bus.close();
    assert!(matches!(mailbox.as_mut().poll_next(&mut context), Poll::Ready(None)));
    assert_eq!(*curious.1.lock().unwrap(), [1, 0]);
}
