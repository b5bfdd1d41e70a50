// The router of Airflow's page: links of the pages navigate in Airflow without loading it again.
import type * as RouterTypes from "react-router-dom";

const router = (globalThis as unknown as { ReactRouterDOM: typeof RouterTypes }).ReactRouterDOM;
export const { Link, Navigate, NavLink, Route, Routes, useLocation, useNavigate, useParams, useSearchParams } = router;
