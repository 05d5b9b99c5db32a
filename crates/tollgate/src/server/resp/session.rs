//! The session of one client, and the commands that need no decision.

use super::arity::{check_arity, unknown_subcommand};
use super::check::Check;
use super::reply_writer::{ErrorReply, Escaped, ReplyWriter, RespVersion};
use super::settings::RespSettings;
use super::throttle::{self, Throttle, ThrottleParams};
use super::transaction::{Transaction, TransactionStep};
use crate::server::auth::tokens::{Rights, TokenDigest, Tokens};
use std::sync::Arc;

/// The state of one client.
pub(super) struct Session {
    id: u64,
    pub(super) version: RespVersion,
    name: Option<Box<[u8]>>,
    credentials: Option<Credentials>,
    rights: Rights,
    /// The parameters of its last `CL.THROTTLE`.
    last_throttle: Option<ThrottleParams>,
    /// Between `MULTI` and `EXEC` or `DISCARD`.
    transaction: Option<Transaction>,
    /// The number of its transactions so far.
    transactions: u64,
    /// True if the client asked to close.
    pub(super) is_closing: bool,
}

/// The credentials of an authenticated client.
enum Credentials {
    /// The password of the settings. Changing it does not end the session.
    Password,
    /// A token, and the set of tokens it was last found in. Revoking it ends the session.
    Token(TokenDigest, Arc<Tokens>),
}

/// A parsed command.
pub(super) enum Command<'a> {
    /// A command that needs no decision; see [`Session::execute`].
    Immediate,
    /// `CL.THROTTLE`: a decision by the limit in the command.
    Throttle(Throttle<'a>),
    /// `TOLLGATE.CHECK`: a decision by the rules.
    Check(Check<'a>),
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            version: RespVersion::Two,
            name: None,
            credentials: None,
            rights: Rights::NONE,
            last_throttle: None,
            transaction: None,
            transactions: 0,
            is_closing: false,
        }
    }

    /// Updates the rights after a reload of passwords or tokens.
    pub(super) fn refresh_rights(&mut self, settings: &RespSettings) {
        if !settings.requires_auth() {
            self.rights = Rights::ALL;
            return;
        }
        match (&mut self.credentials, &settings.tokens) {
            (Some(Credentials::Password), _) => return,
            (Some(Credentials::Token(digest, found_in)), Some(keyring)) => {
                let tokens = keyring.tokens();
                if Arc::ptr_eq(&tokens, found_in) {
                    return;
                }
                if let Some(caller) = tokens.caller_by_digest(digest) {
                    self.rights = caller.rights;
                    *found_in = Arc::clone(&tokens);
                    return;
                }
            }
            (Some(Credentials::Token(..)), None) | (None, _) => {}
        }
        self.credentials = None;
        self.rights = Rights::NONE;
        self.transaction = None;
    }

    /// True if it has any right.
    pub(super) fn is_authenticated(&self) -> bool {
        self.rights != Rights::NONE
    }

    /// True between `MULTI` and `EXEC` or `DISCARD`.
    #[inline]
    pub(super) const fn has_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// The memory of the queued commands of its transaction.
    pub(super) fn transaction_bytes(&self) -> usize {
        self.transaction.as_ref().map_or(0, Transaction::buffered_bytes)
    }

    /// The number of transactions so far, the open one included.
    pub(super) const fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Leaves a transaction that executes nothing, after a command of it panicked.
    pub(super) fn abort_transaction(&mut self) {
        let mut transaction = Transaction::default();
        transaction.abort();
        self.transaction = Some(transaction);
    }

    /// Queues a command of an open transaction; `bytes` are the command as it arrived.
    pub(super) fn step_transaction(
        &mut self,
        arguments: &[&[u8]],
        bytes: &[u8],
        replies: &mut ReplyWriter<'_>,
    ) -> TransactionStep {
        let Some((name, arguments)) = arguments.split_first() else {
            return TransactionStep::Immediate;
        };
        let Some(mut transaction) = self.transaction.take() else {
            return TransactionStep::Immediate;
        };
        let upper = name.to_ascii_uppercase();
        match (&*upper, arguments) {
            (b"EXEC", []) if transaction.is_aborted() => {
                replies.error("EXECABORT Transaction discarded because of previous errors.");
                return TransactionStep::Answered;
            }
            (b"EXEC", []) => return TransactionStep::Execute(transaction),
            (b"EXEC", _) => {
                replies
                    .error("EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command");
                return TransactionStep::Answered;
            }
            (b"POST" | b"HOST:" | b"QUIT", _) | (b"DISCARD" | b"MULTI" | b"RESET", []) | (b"WATCH", [_, ..]) => {
                self.transaction = Some(transaction);
                return TransactionStep::Immediate;
            }
            _ => {}
        }
        let queued = self
            .check_command(name, arguments)
            .and_then(|()| transaction.push(bytes));
        match queued {
            Ok(()) => replies.simple("QUEUED"),
            Err(error) => {
                transaction.abort();
                replies.error(&error);
            }
        }
        self.transaction = Some(transaction);
        TransactionStep::Answered
    }

    /// Checks a command without executing it: the right to use it, the name, and the number of arguments.
    fn check_command(&self, name: &[u8], arguments: &[&[u8]]) -> Result<(), ErrorReply> {
        match &*name.to_ascii_uppercase() {
            b"AUTH" | b"HELLO" | b"QUIT" | b"RESET" => {}
            b"CL.THROTTLE" | b"TOLLGATE.CHECK" => self.require(Rights::CHECK)?,
            _ if !self.is_authenticated() => return Err(NOAUTH.into()),
            _ => {}
        }
        check_arity(name, arguments)
    }

    /// Parses a command.
    ///
    /// # Errors
    /// The error reply, if it is invalid or not allowed.
    #[inline(always)]
    pub(super) fn parse_command<'a>(&mut self, arguments: &[&'a [u8]]) -> Result<Command<'a>, ErrorReply> {
        let Some((name, arguments)) = arguments.split_first() else {
            return Ok(Command::Immediate);
        };
        if name.eq_ignore_ascii_case(b"CL.THROTTLE") {
            self.require(Rights::CHECK)?;
            let call = throttle::read(arguments, &mut self.last_throttle)?;
            if let throttle::ThrottleOp::Refund(_) = call.op {
                self.require(Rights::REFUND)?;
            }
            return Ok(Command::Throttle(call));
        }
        if name.eq_ignore_ascii_case(b"TOLLGATE.CHECK") {
            self.require(Rights::CHECK)?;
            return Check::read(arguments).map(Command::Check);
        }
        Ok(Command::Immediate)
    }

    #[inline]
    fn require(&self, right: Rights) -> Result<(), ErrorReply> {
        if self.rights.contains(right) {
            return Ok(());
        }
        Err(match self.is_authenticated() {
            true => format!("NOPERM this needs the right `{right}`, which the token does not have"),
            false => NOAUTH.into(),
        })
    }

    /// Executes a command that needs no decision.
    pub(super) fn execute(&mut self, arguments: &[&[u8]], settings: &RespSettings, replies: &mut ReplyWriter<'_>) {
        let Some((name, arguments)) = arguments.split_first() else {
            return;
        };
        if let Err(error) = self.try_execute(name, arguments, settings, replies) {
            replies.error(&error);
        }
    }

    fn try_execute(
        &mut self,
        name: &[u8],
        arguments: &[&[u8]],
        settings: &RespSettings,
        replies: &mut ReplyWriter<'_>,
    ) -> Result<(), ErrorReply> {
        let upper = name.to_ascii_uppercase();
        // Cross-protocol scripting: a web page makes a local browser send HTTP that looks like commands.
        if matches!(&*upper, b"POST" | b"HOST:") {
            self.is_closing = true;
            return Ok(());
        }
        self.check_command(name, arguments)?;
        match (&*upper, arguments) {
            (b"QUIT", _) => {
                self.is_closing = true;
                replies.simple("OK");
            }
            (b"RESET", []) => {
                *self = Self::new(self.id);
                self.refresh_rights(settings);
                replies.simple("RESET");
            }
            (b"AUTH", [password]) => {
                self.authenticate(None, password, settings)?;
                replies.simple("OK");
            }
            (b"AUTH", [user, password]) => {
                self.authenticate(Some(user), password, settings)?;
                replies.simple("OK");
            }
            (b"HELLO", arguments) => self.hello(arguments, settings, replies)?,
            (b"PING", []) => replies.simple("PONG"),
            (b"PING" | b"ECHO", [text]) => replies.bulk(text),
            (b"SELECT", [b"0"]) => replies.simple("OK"),
            (b"SELECT", [_]) => return Err("ERR the only database is 0".into()),
            (b"INFO", _) => replies.bulk(INFO.as_bytes()),
            (b"COMMAND", _) => replies.array(0),
            (b"CLIENT", [subcommand, arguments @ ..]) => self.client(subcommand, arguments, replies)?,
            (b"MULTI", []) if self.has_transaction() => return Err("ERR MULTI calls can not be nested".into()),
            (b"MULTI", []) => {
                self.transaction = Some(Transaction::default());
                self.transactions += 1;
                replies.simple("OK");
            }
            (b"EXEC", []) => return Err("ERR EXEC without MULTI".into()),
            (b"DISCARD", []) => match self.transaction.take() {
                Some(_) => replies.simple("OK"),
                None => return Err("ERR DISCARD without MULTI".into()),
            },
            (b"WATCH", _) if self.has_transaction() => return Err("ERR WATCH inside MULTI is not allowed".into()),
            // No command reads a key, so none that is watched can have changed.
            (b"WATCH", [_, ..]) | (b"UNWATCH", []) => replies.simple("OK"),
            _ => return Err(format!("ERR unknown command '{}'", Escaped(name))),
        }
        Ok(())
    }

    /// Authenticates by the password of the settings, or a token.
    fn authenticate(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        settings: &RespSettings,
    ) -> Result<(), ErrorReply> {
        if !settings.requires_auth() {
            return Err("ERR AUTH was sent, but no password or token is configured".into());
        }
        let digest = TokenDigest::new(password);
        let is_user = |name: &str| user.is_none_or(|user| user == b"default" || user == name.as_bytes());
        if let Some(keyring) = &settings.password
            && let Some(caller) = keyring.tokens().caller_by_digest(&digest)
            && is_user(&caller.name)
        {
            self.rights = caller.rights;
            self.credentials = Some(Credentials::Password);
            return Ok(());
        }
        if let Some(keyring) = &settings.tokens {
            let tokens = keyring.tokens();
            if let Some(caller) = tokens.caller_by_digest(&digest)
                && is_user(&caller.name)
            {
                self.rights = caller.rights;
                self.credentials = Some(Credentials::Token(digest, Arc::clone(&tokens)));
                return Ok(());
            }
        }
        Err("WRONGPASS no such user with this password".into())
    }

    /// `HELLO [protocol [AUTH user password] [SETNAME name]]`.
    fn hello(
        &mut self,
        arguments: &[&[u8]],
        settings: &RespSettings,
        replies: &mut ReplyWriter<'_>,
    ) -> Result<(), ErrorReply> {
        let (version, mut options) = match arguments {
            [] => (self.version, arguments),
            [b"2", options @ ..] => (RespVersion::Two, options),
            [b"3", options @ ..] => (RespVersion::Three, options),
            [_, ..] => return Err("NOPROTO unsupported protocol version".into()),
        };
        let (mut login, mut name) = (None, None);
        while let [option, rest @ ..] = options {
            options = match rest {
                [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    login = Some((*user, *password));
                    rest
                }
                [client_name, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(parse_client_name(client_name)?);
                    rest
                }
                _ => return Err(format!("ERR unknown option '{}' of HELLO", Escaped(option))),
            };
        }
        if let Some((user, password)) = login {
            self.authenticate(Some(user), password, settings)?;
        }
        if !self.is_authenticated() {
            return Err("NOAUTH Authentication required: send HELLO 3 AUTH default PASSWORD".into());
        }
        self.version = version;
        if let Some(name) = name {
            self.name = name;
        }
        replies.map(7, version);
        for (key, value) in [("server", "redis"), ("version", VERSION)] {
            replies.bulk(key.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"proto");
        replies.integer(version as u64);
        replies.bulk(b"id");
        replies.integer(self.id);
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            replies.bulk(key.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"modules");
        replies.array(0);
        Ok(())
    }

    fn client(
        &mut self,
        subcommand: &[u8],
        arguments: &[&[u8]],
        replies: &mut ReplyWriter<'_>,
    ) -> Result<(), ErrorReply> {
        let upper = subcommand.to_ascii_uppercase();
        match (&*upper, arguments) {
            (b"ID", []) => replies.integer(self.id),
            (b"GETNAME", []) => match &self.name {
                Some(name) => replies.bulk(name),
                None => replies.null(self.version),
            },
            (b"SETNAME", [name]) => {
                self.name = parse_client_name(name)?;
                replies.simple("OK");
            }
            (b"INFO" | b"LIST", _) => {
                let name = self.name.as_deref().unwrap_or_default();
                let line = format!("id={} name={} resp={}\n", self.id, Escaped(name), self.version as u8);
                replies.bulk(line.as_bytes());
            }
            // Sent by client libraries to every server.
            (b"CAPA" | b"SETINFO" | b"MAINT_NOTIFICATIONS" | b"NO-EVICT" | b"NO-TOUCH", _) => replies.simple("OK"),
            (b"REPLY", [on]) if on.eq_ignore_ascii_case(b"ON") => replies.simple("OK"),
            _ => return Err(unknown_subcommand(subcommand)),
        }
        Ok(())
    }
}

/// A client name without spaces and control characters; none if it is empty.
fn parse_client_name(name: &[u8]) -> Result<Option<Box<[u8]>>, ErrorReply> {
    if name.len() > NAME_BYTES_MAX || !name.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "ERR a client name has at most {NAME_BYTES_MAX} printable characters without spaces"
        ));
    }
    Ok((!name.is_empty()).then(|| name.into()))
}

const NOAUTH: &str = "NOAUTH Authentication required: send AUTH PASSWORD";
const NAME_BYTES_MAX: usize = 128;
/// The version of Redis whose features clients may use.
const VERSION: &str = "7.0.0";
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntollgate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
);
