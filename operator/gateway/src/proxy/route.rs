//! Which path means what.

use crate::engine::dialect::Api;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /generate`, the native interface of `SGLang`.
    Generate,
    /// `GET /v1/models`
    Models,
    /// `GET /health`: is there an engine?
    Health,
    /// `GET /healthz`: does this process answer?
    Live,
    /// Everything below `/rollout/v1/`.
    Rollout,
}

impl Route {
    /// All of them, in the order of [`Route::index`].
    pub(crate) const ALL: [Self; 7] = [
        Self::Chat,
        Self::Completions,
        Self::Generate,
        Self::Models,
        Self::Health,
        Self::Live,
        Self::Rollout,
    ];

    /// The route of a path, and the trajectory that its prefix `/t/{trajectory}` names.
    pub fn of(path: &str) -> Option<(Self, Option<&str>)> {
        if let Some(route) = Self::plain(path) {
            return Some((route, None));
        }
        let rest = path.strip_prefix("/t/")?;
        // A trajectory's id may hold slashes, so the route is looked for at the end.
        ["/v1/chat/completions", "/v1/completions", "/v1/models", "/generate"].iter().find_map(
            |end| {
                let trajectory = rest.strip_suffix(end).filter(|id| !id.is_empty())?;
                Self::plain(end).map(|route| (route, Some(trajectory)))
            },
        )
    }

    fn plain(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/completions" => Some(Self::Completions),
            "/generate" => Some(Self::Generate),
            "/v1/models" => Some(Self::Models),
            "/health" => Some(Self::Health),
            "/healthz" => Some(Self::Live),
            _ => path.starts_with("/rollout/v1/").then_some(Self::Rollout),
        }
    }

    /// The interface by which tokens are asked for, where they are.
    pub const fn api(self) -> Option<Api> {
        match self {
            Self::Chat => Some(Api::Chat),
            Self::Completions => Some(Api::Completions),
            Self::Generate => Some(Api::Generate),
            Self::Models | Self::Health | Self::Live | Self::Rollout => None,
        }
    }

    /// The path at an engine.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => Api::Chat.path(),
            Self::Completions => Api::Completions.path(),
            Self::Generate => Api::Generate.path(),
            Self::Models => "/v1/models",
            Self::Health => "/health",
            Self::Live => "/healthz",
            Self::Rollout => "/rollout/v1/",
        }
    }

    /// The word used in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
            Self::Models => "models",
            Self::Health => "health",
            Self::Live => "healthz",
            Self::Rollout => "rollout",
        }
    }

    /// Its place in [`Route::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_name_trajectories() {
        assert_eq!(Route::of("/v1/chat/completions"), Some((Route::Chat, None)));
        assert_eq!(Route::of("/t/g1/0/v1/completions"), Some((Route::Completions, Some("g1/0"))));
        assert_eq!(Route::of("/t/a/generate"), Some((Route::Generate, Some("a"))));
        assert_eq!(Route::of("/rollout/v1/groups"), Some((Route::Rollout, None)));
        for unknown in ["/", "/t/", "/t//generate", "/t/a/health", "/v1/chat", "/rollout", "*"] {
            assert_eq!(Route::of(unknown), None, "{unknown}");
        }
        for (index, route) in Route::ALL.into_iter().enumerate() {
            assert_eq!(route.index(), index);
        }
    }
}
