//! A skewed clock for a server: ahead of the machine's or behind, adjustable while the server runs.
//!
//! The machine's clock is not touched. A small preloaded library, compiled on demand, shifts the wall clock of the process
//! and nothing else.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The difference between a server's clock and the machine's. Its files are removed with it.
#[derive(Debug)]
pub struct Skew {
    folder: PathBuf,
}

impl Skew {
    /// No difference at first.
    ///
    /// # Panics
    /// Without a C compiler, or a temporary folder.
    pub fn none() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tollgate-skew-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for temporary files");
        let skew = Self { folder };
        skew.set(0);
        let source = skew.folder.join("skew.c");
        fs::write(&source, SOURCE).expect("a folder that can be written to");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&skew.library(), &source])
            .status();
        assert!(compiled.is_ok_and(|status| status.success()), "cc compiles the clock");
        skew
    }

    /// Sets it, in microseconds ahead; negative is behind. Takes effect at once.
    ///
    /// # Panics
    /// If its file is missing.
    pub fn set(&self, ahead_us: i64) {
        // The server maps the file, so it is written in place.
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.file());
        let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, &ahead_us.to_ne_bytes()));
        written.expect("the file of the clock can be written to");
    }

    /// The environment variables of a program with this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.library()), ("SKEWED_CLOCK", self.file())]
    }

    fn file(&self) -> PathBuf {
        self.folder.join("ahead")
    }

    fn library(&self) -> PathBuf {
        self.folder.join("skew.so")
    }
}

impl Drop for Skew {
    fn drop(&mut self) {
        // Leftover files do no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The three functions that return the time. They call the system directly: resolving symbols allocates, and the server's
/// allocator reads the time.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *ahead;

/* Calls before the environment exists, such as an allocator's, get the machine's time. */
static long long ahead_us(void) {
    if (!ahead) {
        const char *name = getenv("SKEWED_CLOCK");
        int file = name ? open(name, O_RDONLY) : -1;
        if (file < 0) {
            return 0;
        }
        void *memory = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED) {
            return 0;
        }
        ahead = memory;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    long failed = syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME) {
        long long us = time->tv_sec * 1000000LL + time->tv_nsec / 1000 + ahead_us();
        time->tv_sec = us / 1000000;
        time->tv_nsec = us % 1000000 * 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *time, void *zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) {
        *to = now.tv_sec;
    }
    return now.tv_sec;
}
"#;
