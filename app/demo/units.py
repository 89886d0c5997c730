"""Convert between units of the same quantity."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    name: str
    quantity: str
    factor: float
    """How many base units of the quantity it is."""
    offset: float = 0.0
    """What is added after the factor, for temperatures."""


# For each quantity: the unit's name and factor, then its other names. The first unit is the base.
_QUANTITIES: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "length": {
        "metre": (1, "m meter meters metres"),
        "kilometre": (1000, "km kilometer kilometers kilometres"),
        "centimetre": (0.01, "cm centimeter centimeters centimetres"),
        "millimetre": (0.001, "mm millimeter millimeters millimetres"),
        "micrometre": (1e-6, "µm um micrometer micrometers micrometres"),
        "nanometre": (1e-9, "nm nanometer nanometers nanometres"),
        "inch": (0.0254, "in inches"),
        "foot": (0.3048, "ft feet"),
        "yard": (0.9144, "yd yards"),
        "mile": (1609.344, "mi miles"),
        "nautical mile": (1852, "nmi nautical_miles"),
        "light year": (9.4607304725808e15, "ly light_years"),
    },
    "mass": {
        "kilogram": (1, "kg kilograms kilo kilos"),
        "gram": (0.001, "g grams"),
        "milligram": (1e-6, "mg milligrams"),
        "tonne": (1000, "t tonnes metric_ton metric_tons"),
        "ounce": (0.028349523125, "oz ounces"),
        "pound": (0.45359237, "lb lbs pounds"),
        "stone": (6.35029318, "st stones"),
        "short ton": (907.18474, "short_tons us_ton us_tons"),
    },
    "volume": {
        "litre": (1, "l liter liters litres"),
        "millilitre": (0.001, "ml milliliter milliliters millilitres"),
        "centilitre": (0.01, "cl centiliter centiliters centilitres"),
        "cubic metre": (1000, "m3 m³ cubic_meter cubic_meters cubic_metres"),
        "teaspoon": (0.00492892159375, "tsp teaspoons"),
        "tablespoon": (0.01478676478125, "tbsp tablespoons"),
        "cup": (0.2365882365, "cups"),
        "fluid ounce": (0.0295735295625, "fl_oz floz fluid_ounces"),
        "pint": (0.473176473, "pt pints"),
        "quart": (0.946352946, "qt quarts"),
        "gallon": (3.785411784, "gal gallons"),
        "imperial pint": (0.56826125, "imperial_pints uk_pint uk_pints"),
        "imperial gallon": (4.54609, "imperial_gallons uk_gallon uk_gallons"),
    },
    "area": {
        "square metre": (1, "m2 m² square_meter square_meters square_metres"),
        "square kilometre": (1e6, "km2 km² square_kilometer square_kilometers square_kilometres"),
        "hectare": (10_000, "ha hectares"),
        "acre": (4046.8564224, "acres"),
        "square foot": (0.09290304, "ft2 ft² sqft square_feet"),
        "square mile": (2_589_988.110336, "mi2 mi² square_miles"),
    },
    "speed": {
        "metre per second": (1, "m/s mps meter_per_second meters_per_second metres_per_second"),
        "kilometre per hour": (1 / 3.6, "km/h kmh kph kilometer_per_hour kilometers_per_hour kilometres_per_hour"),
        "mile per hour": (0.44704, "mph mi/h miles_per_hour"),
        "knot": (1852 / 3600, "kn kt knots"),
        "foot per second": (0.3048, "ft/s feet_per_second"),
    },
    "time": {
        "second": (1, "s sec secs seconds"),
        "millisecond": (0.001, "ms milliseconds"),
        "minute": (60, "min mins minutes"),
        "hour": (3600, "h hr hrs hours"),
        "day": (86_400, "d days"),
        "week": (604_800, "weeks"),
        "year": (31_557_600, "years julian_year"),
    },
    "data": {
        "byte": (1, "B bytes"),
        "bit": (0.125, "bits"),
        "kilobyte": (1e3, "kB KB kilobytes"),
        "megabyte": (1e6, "MB megabytes"),
        "gigabyte": (1e9, "GB gigabytes"),
        "terabyte": (1e12, "TB terabytes"),
        "kibibyte": (2**10, "KiB kibibytes"),
        "mebibyte": (2**20, "MiB mebibytes"),
        "gibibyte": (2**30, "GiB gibibytes"),
        "tebibyte": (2**40, "TiB tebibytes"),
        "kilobit": (125, "kbit kb kilobits"),
        "megabit": (125_000, "Mbit Mb megabits"),
        "gigabit": (125_000_000, "Gbit Gb gigabits"),
    },
    "energy": {
        "joule": (1, "J joules"),
        "kilojoule": (1000, "kJ kilojoules"),
        "calorie": (4.184, "cal calories"),
        "kilocalorie": (4184, "kcal kilocalories"),
        "watt hour": (3600, "Wh watt_hours"),
        "kilowatt hour": (3_600_000, "kWh kilowatt_hours"),
    },
    "pressure": {
        "pascal": (1, "Pa pascals"),
        "hectopascal": (100, "hPa hectopascals"),
        "bar": (100_000, "bars"),
        "millibar": (100, "mbar millibars"),
        "atmosphere": (101_325, "atm atmospheres"),
        "pound per square inch": (6894.757293168, "psi pounds_per_square_inch"),
    },
}
_TEMPERATURES = (
    (Unit("kelvin", "temperature", 1), "K kelvins"),
    (Unit("degree Celsius", "temperature", 1, 273.15), "C °C celsius degrees_celsius centigrade"),
    (Unit("degree Fahrenheit", "temperature", 5 / 9, 273.15 - 32 * 5 / 9), "F °F fahrenheit degrees_fahrenheit"),
)

QUANTITIES = (*_QUANTITIES, "temperature")


def _list_units() -> dict[str, Unit]:
    """Return the units by each of their names, written with spaces."""
    named = [
        (Unit(name, quantity, factor), others)
        for quantity, units in _QUANTITIES.items()
        for name, (factor, others) in units.items()
    ]
    return {
        name.replace("_", " "): unit
        for unit, others in (*named, *_TEMPERATURES)
        for name in (unit.name, *others.split())
    }


_UNITS = _list_units()
_UNITS_IGNORING_CASE = {name.casefold(): unit for name, unit in reversed(_UNITS.items())}


def find_unit(name: str) -> Unit:
    """Return the unit of a name or symbol. Case matters only where it tells units apart: MB and Mb."""
    wanted = " ".join(name.replace("_", " ").split())
    unit = _UNITS.get(wanted) or _UNITS_IGNORING_CASE.get(wanted.casefold())
    if unit is not None:
        return unit
    similar = difflib.get_close_matches(wanted.casefold(), _UNITS_IGNORING_CASE, n=3, cutoff=0.6)
    suggestions = ", ".join(dict.fromkeys(_UNITS_IGNORING_CASE[each].name for each in similar))
    advice = f"did you mean {suggestions}?" if similar else f"there are units of {', '.join(QUANTITIES)}"
    raise ValueError(f"{name!r} is not a known unit; {advice}")


def convert(value: float, source: Unit, target: Unit) -> float:
    """Return the value in the target unit, rounded to 12 significant digits."""
    if source.quantity != target.quantity:
        raise ValueError(
            f"{source.name} and {target.name} cannot be converted: "
            f"one is a unit of {source.quantity}, the other of {target.quantity}"
        )
    kelvin_or_base = value * source.factor + source.offset
    if source.quantity == "temperature" and kelvin_or_base < -1e-9:
        raise ValueError("there is no temperature below absolute zero, -273.15 °C")
    converted = (kelvin_or_base - target.offset) / target.factor
    if not math.isfinite(converted):
        raise ValueError("the value is too large")
    return float(f"{converted:.12g}")
