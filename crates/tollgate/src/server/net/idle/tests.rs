use super::*;
use std::task::Context;

const SECOND: Duration = Duration::from_secs(1);

/// The timeouts of HTTP by default.
const HTTP: IdleTimeouts = IdleTimeouts {
    first_request: Duration::from_secs(5),
    request: Duration::from_secs(5),
    body: Duration::from_secs(10),
    idle: Duration::from_secs(75),
    ..IdleTimeouts::NONE
};

struct Monitored {
    activity: Arc<Activity>,
    monitor: IdleMonitor,
    start: Instant,
}

impl Monitored {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            activity: Arc::default(),
            monitor: IdleMonitor::new(HTTP, start),
            start,
        }
    }

    /// The timeout that is over so many seconds after the start.
    fn check(&mut self, second: u32) -> Option<WaitingFor> {
        self.monitor
            .check(self.activity.progress(), self.start + second * SECOND)
    }

    #[track_caller]
    fn assert_late_for_next_request(&mut self, in_time: [u32; 2], late: u32) {
        assert_eq!(in_time.map(|second| self.check(second)), [None, None]);
        assert_eq!(self.check(late), Some(WaitingFor::NextRequest));
    }
}

#[test]
fn who_connects_and_says_nothing_is_cut_off() {
    let mut connection = Monitored::new();
    assert_eq!(connection.check(4), None);
    assert_eq!(connection.check(5), Some(WaitingFor::FirstRequest));
}

#[test]
fn who_drips_bytes_of_a_request_is_cut_off() {
    let mut connection = Monitored::new();
    drop(connection.activity.start_request(false));
    assert_eq!(connection.check(9), None);
    for second in 20..25 {
        connection.activity.record_bytes();
        assert_eq!(connection.check(second), None, "{second}");
    }
    assert_eq!(connection.check(25), Some(WaitingFor::RestOfRequest));
}

#[test]
fn who_is_silent_between_requests_may_be_so_for_a_while() {
    let mut connection = Monitored::new();
    drop(connection.activity.start_request(false));
    connection.assert_late_for_next_request([10, 84], 85);
}

#[test]
fn the_body_of_a_request_is_not_the_beginning_of_the_next() {
    let mut connection = Monitored::new();
    let guard = connection.activity.start_request(false);
    connection.activity.record_bytes();
    drop(guard);
    connection.assert_late_for_next_request([10, 84], 85);
}

#[test]
fn who_waits_for_an_answer_is_never_cut_off() {
    let mut connection = Monitored::new();
    let guard = connection.activity.start_request(false);
    assert_eq!(connection.check(1_000), None);
    drop(guard);
    assert_eq!(connection.check(1_074), None);
}

#[test]
fn bytes_between_the_requests_of_a_multiplexed_connection_are_no_request() {
    let mut connection = Monitored::new();
    drop(connection.activity.start_request(true));
    connection.activity.record_bytes();
    connection.assert_late_for_next_request([0, 74], 75);
}

#[test]
fn a_body_that_does_not_come_is_late_and_the_next_one_has_its_own_time() {
    let mut connection = Monitored::new();
    for start in [0, 100] {
        let guard = connection.activity.start_request(false);
        let mut body = Box::pin(guard.read_body(Duration::ZERO, std::future::pending::<()>()));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(body.as_mut().poll(&mut cx).is_pending());
        assert_eq!(connection.check(start), None);
        assert_eq!(connection.check(start + 9), None);
        assert!(body.as_mut().poll(&mut cx).is_pending());
        assert_eq!(connection.check(start + 10), Some(WaitingFor::Body));
        connection.activity.time_out_body();
        assert_eq!(body.as_mut().poll(&mut cx), Poll::Ready(None));
    }
}

#[test]
fn each_thing_that_is_waited_for_has_a_time_of_its_own() {
    let timeouts = IdleTimeouts {
        first_request: 5 * SECOND,
        request: 5 * SECOND,
        unread: 75 * SECOND,
        idle: 3_600 * SECOND,
        ..IdleTimeouts::NONE
    };
    let start = Instant::now();
    let mut monitor = IdleMonitor::new(timeouts, start);
    let mut is_over = |second: u32, waiting_for, progress| {
        let mark = ProgressMark { waiting_for, progress };
        monitor.check(mark, start + second * SECOND).is_some()
    };
    assert!(!is_over(0, WaitingFor::NextRequest, 0));
    assert!(!is_over(3_599, WaitingFor::NextRequest, 0));
    assert!(is_over(3_600, WaitingFor::NextRequest, 0));
    assert!(!is_over(3_700, WaitingFor::RestOfRequest, 7));
    assert!(!is_over(3_704, WaitingFor::RestOfRequest, 7));
    assert!(is_over(3_705, WaitingFor::RestOfRequest, 7));
    assert!(!is_over(3_711, WaitingFor::RestOfRequest, 8));
    assert!(!is_over(3_712, WaitingFor::ClientRead, 100));
    assert!(!is_over(3_786, WaitingFor::ClientRead, 100));
    assert!(is_over(3_787, WaitingFor::ClientRead, 100));
}

#[test]
fn a_connection_that_is_too_old_ends_whatever_it_does() {
    let timeouts = IdleTimeouts {
        age: 10 * SECOND,
        ..IdleTimeouts::NONE
    };
    let start = Instant::now();
    let mut monitor = IdleMonitor::new(timeouts, start);
    for (second, is_old) in [(9, false), (10, true), (11, true)] {
        let mark = ProgressMark {
            waiting_for: WaitingFor::Response,
            progress: second.into(),
        };
        assert_eq!(monitor.check(mark, start + second * SECOND).is_some(), is_old);
    }
}
