use super::*;
use crate::extract::key_fn;
use http::Request;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

fn gate(protection: Protection) -> ProtectionGate {
    ProtectionGate::new(&protection.shed(None)).expect("valid numbers")
}

fn enter(gate: &ProtectionGate, class: PriorityClass) -> Result<Result<SlotGuard, SlotWaiter>, Box<crate::Denial>> {
    let (head, ()) = Request::new(()).into_parts();
    gate.enter(&head, None, class)
}

fn poll(waiter: &mut SlotWaiter) -> Poll<Result<SlotGuard, Box<crate::Denial>>> {
    std::pin::Pin::new(waiter).poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_given_back_goes_to_the_best_class() {
    use PriorityClass::{Critical, Normal};
    let gate = gate(Protection::in_flight(1));
    let Ok(Ok(first)) = enter(&gate, Normal) else {
        panic!("a slot is free")
    };
    let Ok(Err(mut normal)) = enter(&gate, Normal) else {
        panic!("it waits")
    };
    let Ok(Err(mut critical)) = enter(&gate, Critical) else {
        panic!("it waits")
    };
    assert!(poll(&mut normal).is_pending() && poll(&mut critical).is_pending());
    drop(first);
    assert!(poll(&mut normal).is_pending());
    let Poll::Ready(Ok(second)) = poll(&mut critical) else {
        panic!("it has the slot")
    };
    assert_eq!(gate.status().in_flight, 1);
    drop(second);
    assert!(matches!(poll(&mut normal), Poll::Ready(Ok(_))));
    drop(normal);
    assert_eq!((gate.status().in_flight, gate.status().waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time_and_a_full_queue_denies_at_once() {
    use PriorityClass::{High, Normal};
    let gate = gate(Protection::in_flight(1).queue(1));
    let _first = enter(&gate, Normal);
    let Ok(Err(mut waiter)) = enter(&gate, Normal) else {
        panic!("it waits")
    };
    assert!(enter(&gate, Normal).is_err(), "the queue is full");
    let Ok(Err(better)) = enter(&gate, High) else {
        panic!("it takes the position")
    };
    let Poll::Ready(Err(denial)) = poll(&mut waiter) else {
        panic!("it was displaced")
    };
    assert_eq!(denial.status(), 503);
    assert_eq!(better.await.expect_err("no slot is given back").status(), 503);
    assert_eq!(gate.status().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_leaves_passes_its_slot_on() {
    let gate = gate(Protection::in_flight(1).reserve(Share::percent(0)));
    let Ok(Ok(first)) = enter(&gate, PriorityClass::Normal) else {
        panic!("a slot is free")
    };
    let Ok(Err(leaves)) = enter(&gate, PriorityClass::Normal) else {
        panic!("it waits")
    };
    let Ok(Err(stays)) = enter(&gate, PriorityClass::Normal) else {
        panic!("it waits")
    };
    drop(first);
    drop(leaves);
    let slot = stays.await.expect("the slot of the one that left");
    assert_eq!(gate.status().in_flight, 1);
    drop(slot);
    assert_eq!(gate.status().in_flight, 0);
}

#[tokio::test]
async fn the_reserve_is_for_critical_requests_alone() {
    let gate = gate(Protection::in_flight(5).reserve(Share::percent(20)).queue(0));
    let slots: Vec<_> = (0..5).map(|_| enter(&gate, PriorityClass::Normal)).collect();
    assert_eq!(slots.iter().filter(|slot| slot.is_ok()).count(), 4);
    assert!(enter(&gate, PriorityClass::Critical).is_ok());
}

#[tokio::test]
async fn the_extractor_of_callers_runs_without_the_lock() {
    let entered: Arc<OnceLock<ProtectionGate>> = Arc::default();
    let was_locked: Arc<OnceLock<bool>> = Arc::default();
    let (inside, outcome) = (Arc::clone(&entered), Arc::clone(&was_locked));
    let caller = key_fn(move |_| {
        outcome.set(inside.get()?.is_locked()).ok();
        Some("a")
    });
    let gate = ProtectionGate::new(&Protection::in_flight(1).caller(caller)).expect("valid numbers");
    entered.set(gate.clone()).expect("it is set once");
    assert!(matches!(enter(&gate, PriorityClass::Normal), Ok(Ok(_))));
    assert_eq!(was_locked.get(), Some(&false));
}
