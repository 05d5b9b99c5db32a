//! Asks servers things, as an operator would.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection to a server.
pub(crate) struct RespClient {
    reader: BufReader<TcpStream>,
}

/// What a server answers: words, or how it refuses. Lists of lists are one list.
pub(crate) type RespReply = Result<Vec<String>, String>;

impl RespClient {
    pub(crate) fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends a command, its words parted by blanks.
    pub(crate) fn send(&mut self, command: &str) -> std::io::Result<()> {
        self.send_arguments(&command.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn send_arguments(&mut self, arguments: &[&str]) -> std::io::Result<()> {
        let mut bytes = format!("*{}\r\n", arguments.len());
        for word in arguments {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.reader.get_mut().write_all(bytes.as_bytes())
    }

    pub(crate) fn read_reply(&mut self) -> std::io::Result<RespReply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at(line.len().min(1));
        Ok(match kind {
            "$" => match rest.parse::<usize>() {
                Ok(length) => {
                    let mut text = vec![0; length + 2];
                    self.reader.read_exact(&mut text)?;
                    text.truncate(length);
                    Ok(vec![String::from_utf8_lossy(&text).into_owned()])
                }
                Err(_) => Ok(Vec::new()),
            },
            "*" => {
                let mut all = Vec::new();
                for _ in 0..rest.parse().unwrap_or(0) {
                    all.extend(self.read_reply()?.unwrap_or_else(|refusal| vec![refusal]));
                }
                Ok(all)
            }
            "-" => Err(rest.to_owned()),
            _ => Ok(vec![rest.to_owned()]),
        })
    }
}

/// One command to the server at a port.
pub(crate) fn send_command(port: u16, command: &str) -> RespReply {
    send_command_with(port, &command.split(' ').collect::<Vec<_>>())
}

/// The same for one with blanks in its words.
pub(crate) fn send_command_with(port: u16, arguments: &[&str]) -> RespReply {
    let reply = RespClient::connect(port).and_then(|mut client| {
        client.send_arguments(arguments)?;
        client.read_reply()
    });
    reply.unwrap_or_else(|error| Err(error.to_string()))
}

/// The same for one that must be obeyed.
pub(crate) fn command_ok(port: u16, command: &str) -> String {
    let reply = send_command(port, command);
    reply
        .unwrap_or_else(|refusal| panic!("{command}: {refusal}"))
        .join("\n")
}

/// A number in what `INFO` says of a section: behind `name:`, or behind `field=` in that line.
pub(crate) fn info(port: u16, section: &str, name: &str, field: Option<&str>) -> u64 {
    let reply = send_command(port, &format!("INFO {section}"))
        .unwrap_or_default()
        .join("\n");
    let line = reply.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    let number = line.and_then(|line| match field {
        Some(field) => line.split(',').find_map(|part| part.strip_prefix(&format!("{field}="))),
        None => Some(line),
    });
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// How often the script was called, whichever way.
pub(crate) fn script_calls(port: u16) -> u64 {
    SCRIPT_COMMANDS
        .into_iter()
        .map(|name| info(port, "commandstats", name, Some("calls")))
        .sum()
}

/// How often such a call was refused: before it ran, or while it did. Writes of the control plane are other commands.
pub(crate) fn refused_script_calls(port: u16) -> u64 {
    let count = |name, field| info(port, "commandstats", name, Some(field));
    SCRIPT_COMMANDS
        .into_iter()
        .map(|name| count(name, "rejected_calls") + count(name, "failed_calls"))
        .sum()
}

const SCRIPT_COMMANDS: [&str; 3] = ["cmdstat_evalsha", "cmdstat_fcall", "cmdstat_eval"];
