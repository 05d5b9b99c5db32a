//! `MULTI` … `EXEC`: commands that are queued as they arrive and executed in order at the end.

use super::reply_writer::ErrorReply;

/// An open transaction of one client.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands as they arrived, one after the other. They are decoded again when they are executed.
    queue: Vec<u8>,
    commands: usize,
    /// True after a command that could not be queued: `EXEC` executes nothing.
    is_aborted: bool,
}

/// The treatment of a command while a transaction is open.
#[derive(Debug)]
pub(super) enum TransactionStep {
    /// It is queued or rejected, and the reply is written.
    Answered,
    /// It is executed at once, as outside of a transaction.
    Immediate,
    /// `EXEC`: the queued commands are executed, and their replies are the elements of one array.
    Execute(Transaction),
}

impl Transaction {
    /// Queues the bytes of a complete command.
    ///
    /// # Errors
    /// The error reply, if the transaction is too large; [`abort`](Self::abort) it then.
    pub(super) fn push(&mut self, command: &[u8]) -> Result<(), ErrorReply> {
        if self.is_aborted {
            return Ok(());
        }
        if self.commands == COMMANDS_MAX || self.queue.len() + command.len() > QUEUE_BYTES_MAX {
            return Err(format!(
                "ERR a transaction has at most {COMMANDS_MAX} commands of {QUEUE_BYTES_MAX} bytes in all: send smaller ones, or a \
                 pipeline without MULTI"
            ));
        }
        self.queue.extend_from_slice(command);
        self.commands += 1;
        Ok(())
    }

    /// Drops the queue. The transaction stays open until the client ends it.
    pub(super) fn abort(&mut self) {
        *self = Self {
            is_aborted: true,
            ..Self::default()
        };
    }

    pub(super) const fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    pub(super) const fn commands(&self) -> usize {
        self.commands
    }

    /// The queued commands.
    pub(super) fn queue(&self) -> &[u8] {
        &self.queue
    }

    /// The memory of the queue.
    pub(super) const fn buffered_bytes(&self) -> usize {
        self.queue.capacity()
    }
}

/// The most commands of a transaction. Their replies stay below what a client may leave unread.
const COMMANDS_MAX: usize = 1024;
/// The most bytes of a transaction.
const QUEUE_BYTES_MAX: usize = 128 * 1024;
