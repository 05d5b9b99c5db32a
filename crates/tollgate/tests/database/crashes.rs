//! Writers that are killed or cancelled, and disks that are full: nothing acknowledged is lost, and nothing is half done.

use crate::fixture::{Storage, assert_whole, commit, eventually, key, on_both, row, run, write};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tollgate::control::chain::digest_of;
use tollgate::control::database::{Database, DatabaseError, IdempotencyKey, StoredResponse};
use tollgate_test_kit::run_to_end;

const SEEDS: u64 = 32;
/// Set for the process that writes and is killed: the folder of its file.
const CHILD: &str = "TOLLGATE_TEST_WRITER";
const WRITERS: usize = 4;

#[test]
fn a_killed_writer_has_lost_nothing_it_acknowledged() {
    if let Some(folder) = std::env::var_os(CHILD) {
        write_until_killed(Path::new(&folder));
    }
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let folder = std::env::temp_dir().join(format!("tollgate-crash-{}-{seed}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let storage = Storage::sqlite_in(&folder);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crashes::a_killed_writer_has_lost_nothing_it_acknowledged",
                "--nocapture",
            ])
            .env(CHILD, &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let kill_after = random.usize(1..60);
        let mut acknowledged = Vec::new();
        for line in lines.map_while(Result::ok) {
            // The harness may have written on the same line before.
            let Some((_, line)) = line.split_once("ack ") else {
                continue;
            };
            let Some((merchant, revision)) = line.split_once(' ') else {
                continue;
            };
            acknowledged.push((merchant.to_owned(), revision.parse::<u64>().unwrap()));
            if acknowledged.len() == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(
            acknowledged.len() >= kill_after,
            "seed {seed}: {} acknowledged",
            acknowledged.len()
        );
        run(async {
            let database = storage.open();
            for (merchant, revision) in &acknowledged {
                let found = database.row(&key(merchant)).await.unwrap();
                assert_eq!(
                    found.map(|row| row.revision),
                    Some(*revision),
                    "seed {seed}: {merchant}"
                );
            }
            assert_whole(&database, &storage).await;
            write(&database, vec![row("after", "10/s")]).await;
        });
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Writes rows with several tasks, and prints each that was acknowledged.
fn write_until_killed(folder: &Path) -> ! {
    run(async {
        let database = Storage::sqlite_in(folder).open();
        let writers = (0..WRITERS).map(|writer| {
            let database = database.clone();
            tokio::spawn(async move {
                for number in 0.. {
                    let merchant = format!("m_{writer}_{number}");
                    let committed = write(&database, vec![row(&merchant, "10/s")]).await;
                    println!("ack {merchant} {}", committed.revision);
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
    });
    unreachable!("the parent kills this process");
}

#[test]
fn a_cancelled_writer_leaves_no_half_state() {
    on_both(async |storage, database| {
        write(&database, vec![row("m", "10/s")]).await;
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..150 {
            let rows = (0..random.usize(1..40)).map(|item| row(&format!("m_{number}_{item}"), "10/s"));
            let write = database.commit(commit(rows.collect()));
            let patience = Duration::from_micros(random.u64(..6_000));
            let _ = tokio::time::timeout(patience, write).await;
        }
        // The writer goes on as if nothing had happened.
        eventually(|| database.commit(commit(vec![row("after", "10/s")]))).await;
        assert_whole(&database, storage).await;
        let mut raw = storage.raw().await;
        // Each of them is in its change, and in the table.
        let revisions = raw.number("SELECT count(DISTINCT revision) FROM override_row").await;
        assert_eq!(raw.number("SELECT count(*) FROM change").await, revisions);
    });
}

#[test]
fn a_retry_with_the_same_key_is_done_once() {
    on_both(async |storage, database| {
        let key_of = |request: &str| IdempotencyKey {
            principal: "ada".to_owned(),
            key_hash: digest_of(b"key"),
            request_digest: digest_of(request.as_bytes()),
        };
        let key = key_of("a");
        let first = database
            .commit_once(&key, commit(vec![row("m_1", "10/s")]))
            .await
            .unwrap();
        assert_eq!(
            database.idempotent(&key).await,
            Ok(None),
            "the process ended before its response was stored"
        );
        write(&database, vec![row("m_1", "20/s")]).await;
        // Another control service, after the answer was lost.
        let again = storage
            .open()
            .commit_once(&key, commit(vec![row("m_1", "10/s")]))
            .await
            .unwrap();
        assert_eq!(
            (again.revision, again.changes.len(), again.head.revision),
            (first.revision, 0, 2)
        );
        assert_eq!(
            database.row(&crate::fixture::key("m_1")).await.unwrap().unwrap().terms,
            "20/s"
        );
        let other = database
            .commit_once(&key_of("b"), commit(vec![row("m_1", "30/s")]))
            .await;
        assert_eq!(other, Err(DatabaseError::KeyReused));

        let response = StoredResponse {
            status: 200,
            body: "{}".to_owned(),
        };
        database.remember_response(&key, &response).await.unwrap();
        assert_eq!(database.idempotent(&key).await, Ok(Some(response.clone())));
        let late = StoredResponse {
            status: 201,
            ..response.clone()
        };
        database.remember_response(&key, &late).await.unwrap();
        assert_eq!(
            database.idempotent(&key).await,
            Ok(Some(response)),
            "the first one is kept"
        );
        // A refused request stores no key.
        let missing = commit(vec![tollgate::control::model::ChangeBody::Publish {
            version: 7,
            digest: digest_of(b""),
        }]);
        let key = IdempotencyKey {
            key_hash: digest_of(b"other"),
            ..key
        };
        assert!(matches!(
            database.commit_once(&key, missing).await,
            Err(DatabaseError::Missing(_))
        ));
        assert_eq!(
            database
                .commit_once(&key, commit(vec![row("m_1", "40/s")]))
                .await
                .unwrap()
                .revision,
            3
        );
        // After a day a key is new.
        storage
            .clock
            .fetch_add(86_400_001, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(database.idempotent(&key_of("b")).await, Ok(None));
        assert_eq!(
            database
                .commit_once(&key_of("b"), commit(vec![row("m_1", "50/s")]))
                .await
                .unwrap()
                .revision,
            4
        );
    });
}

#[test]
fn a_full_disk_is_named_and_left_without_a_restart() {
    let disk = SmallDisk::mount();
    let storage = Storage::sqlite_in(&disk.0);
    run(async {
        let database = storage.open();
        let mut acknowledged = 0;
        let mut fill = async |database: &Database| {
            for _ in 0..100_000 {
                match database
                    .commit(commit(vec![row(&format!("m_{acknowledged}"), "10/s")]))
                    .await
                {
                    Ok(_) => acknowledged += 1,
                    Err(error) => return (error, acknowledged),
                }
            }
            panic!("the disk is never full");
        };
        // Twice: a connection that saw a full disk once must not be lost.
        for round in 0..2_u64 {
            let ballast = disk.0.join("ballast");
            // The second one fits into what the first one has left.
            std::fs::write(&ballast, vec![0; (600 - 300 * usize::try_from(round).unwrap()) << 10]).unwrap();
            let (error, acknowledged) = fill(&database).await;
            assert_eq!(error, DatabaseError::Full, "round {round}");
            assert!(acknowledged > 0);
            for _ in 0..3 {
                let refused = database.commit(commit(vec![row("more", "10/s")])).await;
                assert_eq!(refused, Err(DatabaseError::Full), "round {round}");
            }
            let head = database.head().await.unwrap().unwrap();
            assert_eq!(
                head.revision,
                acknowledged + round,
                "reads go on, and nothing else was done"
            );
            std::fs::remove_file(&ballast).unwrap();
            let committed =
                eventually(|| database.commit(commit(vec![row("more", if round == 0 { "1/s" } else { "2/s" })]))).await;
            assert_eq!(committed.revision, acknowledged + round + 1);
            assert_whole(&database, &storage).await;
        }
    });
}

/// A file system of two megabytes, unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount() -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-small-disk-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&folder);
        run_to_end(&mut mount, "this test mounts a small tmpfs, which takes root");
        Self(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}
