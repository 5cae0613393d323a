//! Replies written beforehand, so that an agent gets meaningful text without a model.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::policy::mix;
use crate::template::{Turn, tool_call};

/// What a script is asked.
#[derive(Debug, Clone, Copy)]
pub struct Cue<'a> {
    /// The conversation, read back from the tokens.
    pub turn: &'a Turn,
    /// The header `X-Rollwright-Task`.
    pub task: Option<&'a str>,
    /// The header `X-Rollwright-Trajectory` or one of its synonyms.
    pub trajectory: Option<&'a str>,
    /// The request's sampling seed.
    pub seed: u64,
}

/// Says what the reply to a conversation is.
///
/// It must be a pure function of the cue, else a continuation on another engine differs.
pub trait Script: fmt::Debug + Send + Sync {
    /// The whole reply, or none to leave it to the policy.
    fn reply(&self, cue: Cue<'_>) -> Option<String>;
}

/// Why a script file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("script {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A line is not a rule.
    #[error("script {path}, line {line}: {source}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What was wrong.
        source: serde_json::Error,
    },
    /// A rule has nothing to say.
    #[error("script {path}, line {line}: needs `text`, `texts` or `tool_call`")]
    Empty {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
}

/// A script of JSON lines; the first line whose conditions all hold replies:
///
/// ```json
/// {"contains": "2 + 2", "text": "4"}
/// {"task": "FrozenLake", "turn": 0, "texts": ["left", "right"]}
/// {"task": "SWE", "turn": 1, "text": "Let me look.", "tool_call": {"name": "bash", "arguments": {"command": "ls"}}}
/// {"text": "I am done."}
/// ```
///
/// Conditions: `contains` (in the last user message), `observation` (in the last message
/// of all), `task`, `trajectory`, `turn` (complete replies before this one). Of `texts`,
/// one is chosen by the trajectory and the sampling seed.
#[derive(Debug, Clone, Default)]
pub struct ScriptFile {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    contains: Option<String>,
    observation: Option<String>,
    task: Option<String>,
    trajectory: Option<String>,
    turn: Option<usize>,
    text: Option<String>,
    #[serde(default)]
    texts: Vec<String>,
    tool_call: Option<Call>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    arguments: serde_json::Value,
}

impl ScriptFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScriptError::Read { path: path.into(), source })?;
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let line_number = index + 1;
            let rule: Rule = serde_json::from_str(line).map_err(|source| ScriptError::Parse {
                path: path.into(),
                line: line_number,
                source,
            })?;
            if rule.text.is_none() && rule.texts.is_empty() && rule.tool_call.is_none() {
                return Err(ScriptError::Empty { path: path.into(), line: line_number });
            }
            rules.push(rule);
        }
        Ok(Self { rules })
    }
}

impl Script for ScriptFile {
    fn reply(&self, cue: Cue<'_>) -> Option<String> {
        self.rules.iter().find(|rule| rule.holds(cue)).map(|rule| rule.reply(cue))
    }
}

impl Rule {
    fn holds(&self, cue: Cue<'_>) -> bool {
        let within = |part: &Option<String>, whole: Option<&str>| {
            part.as_ref().is_none_or(|part| whole.is_some_and(|whole| whole.contains(part)))
        };
        let equal = |want: &Option<String>, have: Option<&str>| {
            want.as_ref().is_none_or(|want| have == Some(want))
        };
        within(&self.contains, cue.turn.last("user"))
            && within(&self.observation, cue.turn.messages.last().map(|last| &*last.content))
            && equal(&self.task, cue.task)
            && equal(&self.trajectory, cue.trajectory)
            && self.turn.is_none_or(|turn| turn == cue.turn.number())
    }

    fn reply(&self, cue: Cue<'_>) -> String {
        let mut reply = self.text.clone().unwrap_or_default();
        if !self.texts.is_empty() {
            let mut hash = mix(cue.seed);
            for &byte in cue.trajectory.unwrap_or_default().as_bytes() {
                hash = mix(hash ^ u64::from(byte));
            }
            reply.push_str(&self.texts[(hash % self.texts.len() as u64) as usize]);
        }
        if let Some(call) = &self.tool_call {
            reply.push_str(&tool_call(&call.name, &call.arguments.to_string()));
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Message;

    fn script(lines: &str) -> Result<ScriptFile, ScriptError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("script.jsonl");
        std::fs::write(&path, lines).unwrap();
        ScriptFile::read(&path)
    }

    fn turn(messages: &[(&str, &str)]) -> Turn {
        let messages = messages
            .iter()
            .map(|&(role, content)| Message { role: role.into(), content: content.into() })
            .collect();
        Turn { messages, reply_start: None }
    }

    #[test]
    fn the_first_rule_that_holds_replies() {
        let script = script(
            "{\"contains\":\"2 + 2\",\"text\":\"4\"}\n\n{\"turn\":1,\"text\":\"second\"}\n{\"text\":\"else\"}",
        )
        .unwrap();
        let say = |messages: &[(&str, &str)]| {
            let turn = turn(messages);
            script.reply(Cue { turn: &turn, task: None, trajectory: None, seed: 0 }).unwrap()
        };
        assert_eq!(say(&[("user", "what is 2 + 2?")]), "4");
        assert_eq!(say(&[("user", "hi"), ("assistant", "ho"), ("user", "hm")]), "second");
        assert_eq!(say(&[("user", "hi")]), "else");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = script("{\"text\":\"a\"}\n{\"txt\":\"b\"}").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("txt"), "{error}");
        let error = script("{\"turn\":1}").unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("`text`"), "{error}");
    }
}
