"""Searching in a log on a screen: as one types, next and previous, only the matches."""

from __future__ import annotations

from console.screens.log_reading import LogReading
from console.view.spans import clean
from console.widgets.log_view_search import LogSearch
from engine_ctl.errors import Usage
from engine_ctl.logs.search import Query


class LogSearching(LogReading):
    """The keys of a search. While one types, the reader is taken to the first match from where
    the search began; escape drops it all."""

    def take_news(self) -> None:
        if self._incremental:
            self._to_match(True, quietly=True)

    def do_search(self) -> None:
        if any(not field.closing for field in self.query(LogSearch)) or self.state is None:
            return
        query = self.state.query
        self._before_search = self.body.key
        field = LogSearch(
            query.text if query else "",
            query.regex if query else False,
            query.case if query else False,
        )
        self.mount(field, before="#footer")
        field.focus()

    def on_log_search_asked(self, message: LogSearch.Asked) -> None:
        message.stop()
        reader = self._reader
        if reader is None:
            return
        try:
            query = Query(message.text, regex=message.regex, case=message.case)
        except Usage as error:
            self.stoker.say(clean(str(error)), "warn")
            return
        if self.stoker.message:
            self.stoker.say("")
        near = self._before_search
        reader.search(query if message.text else None, near)
        self._incremental = bool(message.text)
        self.body.forget()
        self._to_match(True, quietly=True)
        self._show_titles()

    def on_log_search_closed(self, message: LogSearch.Closed) -> None:
        message.stop()
        for field in self.query(LogSearch):
            field.close()
        self.body.focus()
        if not message.kept:
            self._drop_search()
        elif self._incremental:
            self._to_match(True, quietly=True)

    def _drop_search(self) -> None:
        self._incremental = False
        state = self.state
        if self._reader is not None and state is not None:
            if state.choice.query is not None:
                self._choose(query=None)
            self._reader.search(None, None)
            self.body.forget()
        self._show_titles()

    def do_next(self) -> None:
        self._to_match(True)

    def do_previous(self) -> None:
        self._to_match(False)

    def _to_match(self, forward: bool, quietly: bool = False) -> None:
        """Go to the match after (before) the reader's place; while one types, to the first from
        where the search began."""
        state, body = self.state, self.body
        if state is None or state.query is None or state.hits is None:
            if not quietly:
                self.stoker.say("Nothing is searched for; / searches.", "warn")
            return
        start = body.key
        if self._incremental:
            start = self._before_search
            start = start - 1 if start is not None and start > 0 else start
        found = state.hits.beside(start or 0, forward) if len(state.hits) else None
        if found is None and state.hits.complete and len(state.hits) and self._incremental:
            found = state.hits.beside(start or 0, False)
        if found is not None:
            self._incremental = False
            body.go_to(found)
            self._open_hit(found)
            return
        if state.hits.complete:
            self._incremental = False
        if quietly:
            return
        around = state.hits.beside(-1 if forward else 1 << 62, forward)
        if not state.hits.complete or around is None:
            still = "" if state.hits.complete else " so far"
            self.stoker.say(f"No line matches{still}.", "warn")
            return
        self.stoker.say("From the top again." if forward else "From the end again.")
        body.go_to(around)
        self._open_hit(around)

    def _open_hit(self, key: int) -> None:
        """A match inside a fold is shown."""
        state, body = self.state, self.body
        if state is not None and state.fold and state.rows.known(key) and body.key != key:
            body.action_open()
            body.go_to(key)

    def do_matches(self) -> None:
        state = self.state
        if state is None or state.query is None:
            self.stoker.say("Nothing is searched for; / searches.", "warn")
            return
        self._choose(query=None if state.choice.query is not None else state.query)
