//! The thread that applies new state. One for all of it: what one thread allocates and others free leaves holes that no thread fills, and
//! with many edits of rows memory would grow with each.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A thread for work that takes long. It starts with the first, and ends with this value.
#[derive(Default)]
pub(in crate::control) struct Applier {
    jobs: Mutex<Option<SyncSender<Job>>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// Work that waits for the thread. Callers hold a lock, so there is never more.
const QUEUE: usize = 1;

impl Applier {
    /// Does work on the thread, in the context of this runtime, and returns its result.
    ///
    /// # Errors
    /// It panicked, or there is no thread.
    pub(in crate::control) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let (reply, replied) = oneshot::channel();
        let runtime = Handle::current();
        self.send(Box::new(move || {
            let _context = runtime.enter();
            // A panic is logged by its hook, and ends this work only.
            if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
                // The caller may have given up meanwhile.
                let _ = reply.send(result);
            }
        }))?;
        replied.await.map_err(|_| "it panicked".to_owned())
    }

    fn send(&self, job: Job) -> Result<(), String> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *jobs {
            Some(sender) => sender,
            none => {
                let (sender, receiver) = sync_channel::<Job>(QUEUE);
                let work = move || receiver.into_iter().for_each(|job| job());
                let thread = thread::Builder::new().name("control-apply".to_owned());
                thread.spawn(work).map_err(|error| error.to_string())?;
                none.insert(sender)
            }
        };
        sender.try_send(job).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Applier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::ThreadId;

    #[tokio::test]
    async fn all_work_is_done_by_one_thread_also_after_a_panic() {
        let applier = Applier::default();
        let id = || thread::current().id();
        let first: ThreadId = applier.run(id).await.unwrap();
        assert_ne!(first, id());
        let panicked: Result<(), String> = applier.run(|| panic!("injected")).await;
        assert_eq!(panicked, Err("it panicked".to_owned()));
        assert_eq!(applier.run(id).await, Ok(first));
        // In the context of the runtime, as blocking work is.
        assert!(applier.run(|| Handle::try_current().is_ok()).await.unwrap());
    }
}
