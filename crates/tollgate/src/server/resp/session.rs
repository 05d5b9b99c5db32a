//! What is known of one client, and the commands that are answered at once.

use super::check::Check;
use super::settings::RespSettings;
use super::throttle::{self, Terms, Throttle};
use super::write::{Protocol, Refusal, Replies, Shown};
use crate::server::tokens::{TokenDigest, Rights, Tokens};
use std::sync::Arc;

/// One client's side of a conversation.
pub(super) struct Session {
    number: u64,
    pub(super) protocol: Protocol,
    name: Option<Box<[u8]>>,
    /// The password it showed, and those that held then.
    shown: Option<(TokenDigest, Arc<Tokens>)>,
    rights: Rights,
    /// Of its last call of `CL.THROTTLE`.
    last: Option<Terms>,
    /// It said goodbye.
    pub(super) is_leaving: bool,
}

/// What a command asks for.
pub(super) enum Ask<'a> {
    /// Nothing that must be decided: [`Session::answer`] knows.
    Plain,
    /// A decision by the limit in the call.
    Throttle(Throttle<'a>),
    /// A decision by the rules.
    Check(Check<'a>),
}

impl Session {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            protocol: Protocol::Two,
            name: None,
            shown: None,
            rights: Rights::NONE,
            last: None,
            is_leaving: false,
        }
    }

    /// Sees what it may do now: passwords come and go.
    pub(super) fn look_up(&mut self, settings: &RespSettings) {
        if !settings.asks() {
            self.rights = Rights::ALL;
            return;
        }
        let Some((digest, known)) = &mut self.shown else {
            self.rights = Rights::NONE;
            return;
        };
        let keyrings = [&settings.password, &settings.tokens].into_iter().flatten();
        for keyring in keyrings {
            let tokens = keyring.tokens();
            if Arc::ptr_eq(&tokens, known) {
                return;
            }
            if let Some(caller) = tokens.caller_by_digest(digest) {
                self.rights = caller.rights;
                *known = Arc::clone(&tokens);
                return;
            }
        }
        self.shown = None;
        self.rights = Rights::NONE;
    }

    /// Whether it may do anything at all.
    pub(super) fn is_known(&self) -> bool {
        self.rights != Rights::NONE
    }

    /// What a command asks for.
    ///
    /// # Errors
    /// The reply, if it cannot be decided.
    #[inline]
    pub(super) fn sort<'a>(&mut self, arguments: &[&'a [u8]]) -> Result<Ask<'a>, Refusal> {
        let Some((name, arguments)) = arguments.split_first() else {
            return Ok(Ask::Plain);
        };
        if name.eq_ignore_ascii_case(b"CL.THROTTLE") {
            self.need(Rights::CHECK)?;
            let call = throttle::read(arguments, &mut self.last)?;
            if let throttle::Quantity::GiveBack(_) = call.quantity {
                self.need(Rights::REFUND)?;
            }
            return Ok(Ask::Throttle(call));
        }
        if name.eq_ignore_ascii_case(b"TOLLGATE.CHECK") {
            self.need(Rights::CHECK)?;
            return Check::read(arguments).map(Ask::Check);
        }
        Ok(Ask::Plain)
    }

    #[inline]
    fn need(&self, right: Rights) -> Result<(), Refusal> {
        if self.rights.contains(right) {
            return Ok(());
        }
        Err(match self.is_known() {
            true => format!("NOPERM this needs the right `{right}`, which the token does not have"),
            false => NOAUTH.into(),
        })
    }

    /// Answers a command that needs no decision.
    pub(super) fn answer(&mut self, arguments: &[&[u8]], settings: &RespSettings, replies: &mut Replies<'_>) {
        let Some((name, arguments)) = arguments.split_first() else {
            return;
        };
        if let Err(refusal) = self.try_answer(name, arguments, settings, replies) {
            replies.error(&refusal);
        }
    }

    fn try_answer(
        &mut self,
        name: &[u8],
        arguments: &[&[u8]],
        settings: &RespSettings,
        replies: &mut Replies<'_>,
    ) -> Result<(), Refusal> {
        let upper = name.to_ascii_uppercase();
        match (&*upper, arguments) {
            // A page in a browser on this machine, made to send us what looks like commands.
            (b"POST" | b"HOST:", _) => self.is_leaving = true,
            (b"QUIT", _) => {
                self.is_leaving = true;
                replies.simple("OK");
            }
            (b"RESET", []) => {
                *self = Self::new(self.number);
                self.look_up(settings);
                replies.simple("RESET");
            }
            (b"AUTH", [password]) => {
                self.show(None, password, settings)?;
                replies.simple("OK");
            }
            (b"AUTH", [user, password]) => {
                self.show(Some(user), password, settings)?;
                replies.simple("OK");
            }
            (b"HELLO", arguments) => self.hello(arguments, settings, replies)?,
            _ if !self.is_known() => return Err(NOAUTH.into()),
            (b"PING", []) => replies.simple("PONG"),
            (b"PING" | b"ECHO", [text]) => replies.bulk(text),
            (b"SELECT", [b"0"]) => replies.simple("OK"),
            (b"SELECT", [_]) => return Err("ERR there is only database 0".into()),
            (b"INFO", _) => replies.bulk(INFO.as_bytes()),
            (b"COMMAND", _) => replies.array(0),
            (b"CLIENT", [subcommand, arguments @ ..]) => self.client(subcommand, arguments, replies)?,
            (b"AUTH" | b"CLIENT" | b"ECHO" | b"PING" | b"RESET" | b"SELECT", _) => {
                let name = name.to_ascii_lowercase();
                return Err(format!("ERR wrong number of arguments for '{}' command", Shown(&name)));
            }
            _ => return Err(format!("ERR unknown command '{}'", Shown(name))),
        }
        Ok(())
    }

    /// Takes a password: the one of the settings, or a token.
    fn show(&mut self, user: Option<&[u8]>, password: &[u8], settings: &RespSettings) -> Result<(), Refusal> {
        if !settings.asks() {
            return Err("ERR AUTH was sent, and this server asks for no password".into());
        }
        let digest = TokenDigest::new(password);
        for keyring in [&settings.password, &settings.tokens].into_iter().flatten() {
            let tokens = keyring.tokens();
            if let Some(caller) = tokens.caller_by_digest(&digest)
                && user.is_none_or(|user| user == b"default" || user == caller.name.as_bytes())
            {
                self.rights = caller.rights;
                self.shown = Some((digest, Arc::clone(&tokens)));
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
        replies: &mut Replies<'_>,
    ) -> Result<(), Refusal> {
        let (protocol, mut options) = match arguments {
            [] => (self.protocol, arguments),
            [b"2", options @ ..] => (Protocol::Two, options),
            [b"3", options @ ..] => (Protocol::Three, options),
            [_, ..] => return Err("NOPROTO unsupported protocol version".into()),
        };
        let (mut login, mut name) = (None, None);
        while let [option, rest @ ..] = options {
            options = match rest {
                [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                    login = Some((*user, *password));
                    rest
                }
                [wanted, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                    name = Some(checked_name(wanted)?);
                    rest
                }
                _ => return Err(format!("ERR '{}' is no option of HELLO", Shown(option))),
            };
        }
        if let Some((user, password)) = login {
            self.show(Some(user), password, settings)?;
        }
        if !self.is_known() {
            return Err("NOAUTH show a password: HELLO 3 AUTH default PASSWORD".into());
        }
        self.protocol = protocol;
        if let Some(name) = name {
            self.name = name;
        }
        replies.map(7, protocol);
        for (key, value) in [("server", "redis"), ("version", VERSION)] {
            replies.bulk(key.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"proto");
        replies.integer(protocol as u64);
        replies.bulk(b"id");
        replies.integer(self.number);
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            replies.bulk(key.as_bytes());
            replies.bulk(value.as_bytes());
        }
        replies.bulk(b"modules");
        replies.array(0);
        Ok(())
    }

    fn client(&mut self, subcommand: &[u8], arguments: &[&[u8]], replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let upper = subcommand.to_ascii_uppercase();
        match (&*upper, arguments) {
            (b"ID", []) => replies.integer(self.number),
            (b"GETNAME", []) => match &self.name {
                Some(name) => replies.bulk(name),
                None => replies.null(self.protocol),
            },
            (b"SETNAME", [name]) => {
                self.name = checked_name(name)?;
                replies.simple("OK");
            }
            (b"INFO" | b"LIST", _) => {
                let name = self.name.as_deref().unwrap_or_default();
                let line = format!("id={} name={} resp={}\n", self.number, Shown(name), self.protocol as u8);
                replies.bulk(line.as_bytes());
            }
            // What clients say of themselves, and offers that they make to every server.
            (b"SETINFO" | b"MAINT_NOTIFICATIONS" | b"NO-EVICT" | b"NO-TOUCH", _) => replies.simple("OK"),
            (b"REPLY", [on]) if on.eq_ignore_ascii_case(b"ON") => replies.simple("OK"),
            _ => return Err(format!("ERR unknown subcommand '{}' of CLIENT", Shown(subcommand))),
        }
        Ok(())
    }
}

/// A name that stands in one line without spaces; none if it is empty.
fn checked_name(name: &[u8]) -> Result<Option<Box<[u8]>>, Refusal> {
    if name.len() > NAME_BYTES_MAX || !name.iter().all(u8::is_ascii_graphic) {
        return Err(format!(
            "ERR the name of a client has at most {NAME_BYTES_MAX} letters without spaces"
        ));
    }
    Ok((!name.is_empty()).then(|| name.into()))
}

const NOAUTH: &str = "NOAUTH Authentication required: send AUTH PASSWORD";
const NAME_BYTES_MAX: usize = 128;
/// Clients look at it to know what they may use.
const VERSION: &str = "7.0.0";
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\ntollgate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n"
);
