//! Which worker generates a request.
