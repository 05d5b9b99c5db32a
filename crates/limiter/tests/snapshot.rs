//! A restart does not reset limits, and a bad file does not bring a program down.

use std::fs;
use std::path::PathBuf;
use tollgate_limiter::clock::Clock;
use tollgate_limiter::core::{Cell, Concurrency, Decision, Limit, Micros, Timestamp};
use tollgate_limiter::limits::{FixedWindow, Gcra, IntoLimit, LeakyBucket, SlidingCounter, SlidingLog, TokenBucket};
use tollgate_limiter::store::memory::{Memory, SnapshotError};
use tollgate_limiter::testing::counters::named_limit;
use tollgate_limiter::{Limiter, NamedLimit};

/// A file of this test's own, gone when it ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("tollgate-{}-{name}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_770_854_400_000_000))
}

fn limits() -> Vec<Limit> {
    let limits = [
        TokenBucket::per_minute(7).into_limit(),
        Gcra::per_minute(7).burst(9).into_limit(),
        FixedWindow::per_minute(7).into_limit(),
        SlidingCounter::per_minute(7).into_limit(),
        SlidingLog::per_minute(7).into_limit(),
        LeakyBucket::per_minute(7).into_limit(),
        Concurrency::new(7, Micros::from_secs(60)).map(Limit::from),
        Cell::new(6, 7, 60).map(Limit::from),
    ];
    limits.into_iter().map(|limit| limit.expect("in range")).collect()
}

fn named_limits(limiter: &Limiter) -> Vec<NamedLimit> {
    let named = |(index, limit): (usize, Limit)| named_limit(limiter, &format!("rule {index}"), limit);
    limits().into_iter().enumerate().map(named).collect()
}

/// What every rule says to a few more requests of a few subjects.
fn decisions(limiter: &Limiter) -> Vec<Decision> {
    let subjects: Vec<String> = (0..20).map(|n| format!("user:{n}")).collect();
    let each = |limit: &NamedLimit| {
        subjects
            .iter()
            .map(|subject| limiter.check(limit, subject))
            .collect::<Vec<_>>()
    };
    named_limits(limiter).iter().flat_map(each).collect()
}

/// A store in which subjects have used more the higher their number.
fn used_limiter(clock: &Clock) -> Limiter {
    let limiter = Limiter::new(Memory::options().clock(clock.clone()).build());
    for limit in named_limits(&limiter) {
        for n in 0..20 {
            for _ in 0..n % 9 {
                clock.advance(Micros::new(10));
                limiter.check(&limit, format!("user:{n}"));
            }
        }
    }
    limiter
}

fn restore(path: &Scratch, clock: &Clock) -> Result<Memory, SnapshotError> {
    Memory::options().clock(clock.clone()).restore(&path.0)
}

#[test]
fn a_restored_store_answers_as_the_old_one_would_have() {
    let (path, clock) = (Scratch::new("round"), clock());
    let before = used_limiter(&clock);
    let keys = before.store().snapshot(&path.0).expect("it can be written");
    assert!(keys > 100);
    let after = Limiter::new(restore(&path, &clock).expect("it can be read"));
    assert_eq!(after.store().usage().keys, keys);
    clock.advance(Micros::from_millis(1_234));
    assert_eq!(decisions(&after), decisions(&before));
    clock.advance(Micros::from_secs(30));
    assert_eq!(decisions(&after), decisions(&before));
}

#[test]
fn what_is_past_its_time_is_neither_written_nor_read() {
    let (path, clock) = (Scratch::new("past"), clock());
    let before = used_limiter(&clock);
    before.store().snapshot(&path.0).expect("it can be written");
    clock.advance(Micros::from_secs(3_600));
    assert_eq!(restore(&path, &clock).expect("it can be read").usage().keys, 0);
    assert_eq!(before.store().snapshot(&path.0).expect("it can be written"), 0);
}

#[test]
fn a_clock_behind_the_snapshot_starts_where_the_snapshot_stood() {
    let (path, late) = (Scratch::new("clock"), clock());
    late.advance(Micros::from_secs(86_400));
    let before = used_limiter(&late);
    before.store().snapshot(&path.0).expect("it can be written");
    let early = clock();
    let after = Limiter::new(restore(&path, &early).expect("it can be read"));
    assert_eq!(early.now(), late.now());
    assert_eq!(decisions(&after), decisions(&before));
}

#[cfg(unix)]
#[test]
fn only_its_owner_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let (path, clock) = (Scratch::new("mode"), clock());
    fs::write(&path.0, "was here before, readable by all").expect("a scratch file can be written");
    fs::set_permissions(&path.0, fs::Permissions::from_mode(0o644)).expect("its mode can be set");
    used_limiter(&clock)
        .store()
        .snapshot(&path.0)
        .expect("it can be written");
    let mode = fs::metadata(&path.0).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_file_is_refused_wherever_it_is_damaged() {
    let (path, clock) = (Scratch::new("damaged"), clock());
    used_limiter(&clock)
        .store()
        .snapshot(&path.0)
        .expect("it can be written");
    let whole = fs::read(&path.0).expect("it is there");
    let heading = b"tollgate snapshot 2\n".len();
    for offset in (0..whole.len()).step_by(7).chain(whole.len() - 20..whole.len()) {
        let mut bytes = whole.clone();
        bytes[offset] ^= 1 << (offset % 8);
        fs::write(&path.0, &bytes).expect("a scratch file can be written");
        let error = restore(&path, &clock).expect_err("a flipped bit is found");
        assert_eq!(
            matches!(error, SnapshotError::Foreign),
            offset < heading,
            "at {offset}: {error}"
        );
    }
    for length in (0..whole.len()).step_by(13) {
        fs::write(&path.0, &whole[..length]).expect("a scratch file can be written");
        assert!(restore(&path, &clock).is_err(), "cut off after {length} bytes");
    }
    let mut longer = whole;
    longer.push(0);
    fs::write(&path.0, &longer).expect("a scratch file can be written");
    let error = restore(&path, &clock).expect_err("something follows");
    assert_eq!(
        error.to_string(),
        "the snapshot is damaged, something follows its end: move it away to start empty"
    );
}

#[test]
fn a_file_that_is_no_snapshot_or_not_there_says_so() {
    let (path, clock) = (Scratch::new("foreign"), clock());
    assert!(matches!(restore(&path, &clock), Err(SnapshotError::Io(_))));
    for text in [
        "",
        "tollgate",
        "tollgate snapshot 1\n and more",
        "something else, and quite long at that",
    ] {
        fs::write(&path.0, text).expect("a scratch file can be written");
        assert!(matches!(restore(&path, &clock), Err(SnapshotError::Foreign)), "{text}");
    }
}

#[test]
fn an_unwritable_place_leaves_the_old_file_alone() {
    let clock = clock();
    let missing = std::env::temp_dir().join("tollgate-no-such-folder").join("file");
    assert!(matches!(
        used_limiter(&clock).store().snapshot(missing),
        Err(SnapshotError::Io(_))
    ));
}
