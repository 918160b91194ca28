"""Rounds: selecting a cohort, and closing the round."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from turnout.live import Scheduler
from turnout.service import models, replies
from turnout.service.answers import round_to_dict
from turnout.service.calls import Answer
from turnout.service.routes.routing import FLEET, SERVERS, Fleet, Resource
from turnout.web.access import READERS, Caller

ROUNDS = Resource()


@ROUNDS.change(f"{FLEET}/rounds", SERVERS, replies.Round)
def choose(scheduler: Scheduler, body: models.Available, _: Caller) -> Answer:
    """Selects the cohort of the next round; while a round is open, returns its cohort again."""
    cohort = scheduler.choose(body.offered)
    opened = scheduler.open_round
    assert opened is not None, "choose opens a round"
    return Answer(round_to_dict(opened, cohort))


@ROUNDS.change(f"{FLEET}/rounds/close", SERVERS, replies.ClosedRound)
def close_round(scheduler: Scheduler, body: models.Closing, _: Caller) -> Answer:
    """Closes the round with the clients that have reported."""
    closed = scheduler.close_round(body.after).round
    return Answer({"round": closed, "turns": [turn.to_dict() for turn in scheduler.history(round=closed)]})


@ROUNDS.change(f"{FLEET}/rounds/abandon", SERVERS, replies.Abandoned)
def abandon_round(scheduler: Scheduler, body: models.Nothing, _: Caller) -> Answer:  # noqa: ARG001  # it names the model
    """Cancels a round without any reports, as if its cohort had never been selected."""
    round_ = scheduler.round
    scheduler.abandon_round()
    return Answer({"round": round_})


@ROUNDS.query(f"{FLEET}/round", READERS, replies.RoundState)
def round_state(calls: Fleet) -> Response:
    """Shows the open round, and whether it can be closed."""
    scheduler = calls.scheduler
    opened = scheduler.open_round
    if opened is None:
        return JSONResponse({"open": None, "ready": False})
    cohort = [turn.id for turn in scheduler.history(round=opened.round)]
    return JSONResponse({"open": round_to_dict(opened, cohort), "ready": scheduler.ready})
