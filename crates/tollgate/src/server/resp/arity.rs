//! The commands and their numbers of arguments: the errors that Redis reports before it executes or queues a command.

use super::reply_writer::{ErrorReply, Escaped};

/// Checks the name of a command and the number of its arguments. The arguments of `CL.THROTTLE` are not counted: redis-cell
/// itself complains about them, when it is executed.
pub(super) fn check_arity(name: &[u8], arguments: &[&[u8]]) -> Result<(), ErrorReply> {
    let count = arguments.len();
    let is_complete = match &*name.to_ascii_uppercase() {
        b"CL.THROTTLE" | b"HELLO" | b"QUIT" | b"INFO" | b"COMMAND" => true,
        b"TOLLGATE.CHECK" => count >= 2 && count.is_multiple_of(2),
        b"RESET" | b"MULTI" | b"EXEC" | b"DISCARD" | b"UNWATCH" => count == 0,
        b"WATCH" => count > 0,
        b"PING" => count <= 1,
        b"ECHO" | b"SELECT" => count == 1,
        b"AUTH" => (1..=2).contains(&count),
        b"CLIENT" => match arguments.split_first() {
            Some((subcommand, arguments)) => return check_client_arity(subcommand, arguments),
            None => false,
        },
        _ => return Err(format!("ERR unknown command '{}'", Escaped(name))),
    };
    match is_complete {
        true => Ok(()),
        false => {
            let name = name.to_ascii_lowercase();
            Err(format!(
                "ERR wrong number of arguments for '{}' command",
                Escaped(&name)
            ))
        }
    }
}

/// The same for a subcommand of `CLIENT`.
fn check_client_arity(subcommand: &[u8], arguments: &[&[u8]]) -> Result<(), ErrorReply> {
    match (&*subcommand.to_ascii_uppercase(), arguments) {
        (b"ID" | b"GETNAME", []) | (b"SETNAME" | b"REPLY", [_]) => Ok(()),
        (b"INFO" | b"LIST" | b"CAPA" | b"SETINFO" | b"MAINT_NOTIFICATIONS" | b"NO-EVICT" | b"NO-TOUCH", _) => Ok(()),
        _ => Err(unknown_subcommand(subcommand)),
    }
}

/// The error of a subcommand of `CLIENT` that does not exist.
pub(super) fn unknown_subcommand(subcommand: &[u8]) -> ErrorReply {
    format!("ERR unknown subcommand '{}' of CLIENT", Escaped(subcommand))
}
