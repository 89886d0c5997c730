"""What a caller asks of a discovery, and the defaults for what it leaves open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.auth.permissions import Caller
from app.catalog.categories import resolve_categories
from app.catalog.projects import Project
from app.catalog.visibility import Scope
from app.discovery.changes import GivenTool
from app.discovery.cut import resolve_cut
from app.discovery.formats import Format
from app.discovery.selection import Retirement
from app.search.query import Query
from app.search.scoring import Strategy
from app.search.searcher import Searcher, SearchOptions
from app.usage.decision_log import Interface

DEFAULT_LIMIT = 8
DEFAULT_STRATEGY: Strategy = "hybrid"


@dataclass(frozen=True)
class ConversationTurn:
    """A turn of a conversation whose tools Toolscout remembers."""

    id: str
    turn: int | None = None
    """From 1; None: the next one."""
    ages_of_calls: Mapping[str, int] = field(default_factory=dict)
    """In how many turns ago each tool was last called, by its alias, as far as the request tells."""

    def get_turns_of_calls(self, turn: int) -> dict[str, int]:
        return {alias: turn - age for alias, age in self.ages_of_calls.items()}


@dataclass(frozen=True)
class DiscoveryRequest:
    """A request as its caller made it. None leaves the choice to the project, the user's settings or the defaults."""

    query: Query
    project_id: str | None = None
    server_ids: Sequence[str] | None = None
    tags: Sequence[str] | None = None
    categories: Sequence[str] | None = None
    """By id or name."""
    strategy: Strategy | None = None
    limit: int | None = None
    fill: bool = False
    """Return as many tools as the limit allows, and not only those that the message needs."""
    threshold: float | None = None
    include_core_tools: bool = True
    max_tokens: int | None = None
    keep: Sequence[GivenTool] | None = None
    """The tools that the model was given earlier in the conversation; None: the caller does not say, and is not told
    what has changed."""
    conversation: ConversationTurn | None = None
    """Where Toolscout remembers the kept tools, instead of `keep`."""
    retirement: Retirement | None = None
    """Which of the kept tools the conversation can do without; None: all are kept."""
    api_format: Format = "mcp"
    """How the tools are rendered, which decides whether the model's definition of one differs."""
    explain: bool = False
    describe: bool = False
    """Say in a sentence why each tool was found, which costs less than `explain`."""
    connect: bool = False
    """Make links with which the user signs in to servers that want it."""
    dry_run: bool = False
    """Do not count the discovery as a user's, do not log it and do not learn from it."""
    interface: Interface = "rest"
    """Where the request came in, for the decision log."""

    @property
    def kept_keys(self) -> Sequence[str]:
        return [tool.tool_key for tool in self.keep or ()]


async def resolve_options(searcher: Searcher, caller: Caller, request: DiscoveryRequest) -> SearchOptions:
    """Fill in what the request leaves open: from its project, then the user's settings, then the defaults.

    Raises `NotFound` if the project does not exist or the caller's key is bound to another one.
    """
    user = caller.require_user()
    scope = await make_scope(searcher, caller, request)
    project = await searcher.read_project(searcher.database.reader(user.id), scope, user.catalog_version)
    return make_options(searcher, caller, request, scope, project)


async def make_scope(searcher: Searcher, caller: Caller, request: DiscoveryRequest) -> Scope:
    """Return where to search.

    Raises `NotFound` if the caller's key is bound to another project, and `InvalidInput` if a category has no such
    name.
    """
    user_id, project_id = caller.require_user().id, caller.resolve_project(request.project_id)
    scope = Scope(user_id, searcher.model.id, request.server_ids, request.tags, project_id)
    if request.categories is None:
        return scope
    reader = searcher.database.reader(user_id)
    return replace(scope, category_ids=await resolve_categories(reader, scope, request.categories))


def make_options(
    searcher: Searcher, caller: Caller, request: DiscoveryRequest, scope: Scope, project: Project | None
) -> SearchOptions:
    """Like `resolve_options`, for a project that has been read."""
    user, model = caller.require_user(), searcher.models.get(scope.model).model
    settings = user.settings
    strategy, limit, threshold = settings.get("strategy"), settings.get("limit"), settings.get("similarity_threshold")
    if project is not None:
        strategy = strategy if project.optimization == "cloud" else project.optimization
        limit = project.limit or limit
        threshold = threshold if project.similarity_threshold is None else project.similarity_threshold
    requested_limit = request.limit or limit
    cut = resolve_cut(model, user)
    return SearchOptions(
        scope=scope,
        strategy=request.strategy or strategy or DEFAULT_STRATEGY,
        threshold=threshold if request.threshold is None else request.threshold,
        limit=requested_limit or DEFAULT_LIMIT,
        requested_limit=requested_limit,
        fill=request.fill,
        own_calibration=cut.own_calibration,
        shift=cut.shift,
        learned=settings.get("learn_from_use") is not False,
        cloud=project is not None and project.optimization == "cloud" and request.strategy is None,
        enabled=project is None or project.optimization is not None,
        confined=caller.project_id is not None,
        catalog_version=user.catalog_version,
        examples_version=user.examples_version,
    )
