-- A help desk of many tenants: every key but a few begins with the tenant.
CREATE TABLE tenants (
  id int PRIMARY KEY, name text NOT NULL, subdomain text NOT NULL UNIQUE, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL);
CREATE TABLE ticket_statuses (code varchar(20) PRIMARY KEY, label text NOT NULL, is_closed boolean NOT NULL, position int);
CREATE TABLE priorities (code varchar(10) PRIMARY KEY, label text NOT NULL, sla_hours int);
CREATE TABLE users (
  tenant_id int NOT NULL REFERENCES tenants, id int, email text NOT NULL, full_name text NOT NULL, password_hash text,
  role text NOT NULL, manager_id int, last_login_at timestamptz, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL, version int NOT NULL, PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, manager_id) REFERENCES users);
CREATE TABLE user_phones (
  tenant_id int, user_id int, kind varchar(10), phone_number text NOT NULL, verified boolean NOT NULL,
  PRIMARY KEY (tenant_id, user_id, kind), FOREIGN KEY (tenant_id, user_id) REFERENCES users);
CREATE TABLE teams (
  tenant_id int NOT NULL REFERENCES tenants, id int, name text NOT NULL, lead_id int, created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL, PRIMARY KEY (tenant_id, id), FOREIGN KEY (tenant_id, lead_id) REFERENCES users);
CREATE TABLE team_members (
  tenant_id int, team_id int, user_id int, role text NOT NULL, joined_on date NOT NULL,
  PRIMARY KEY (tenant_id, team_id, user_id), FOREIGN KEY (tenant_id) REFERENCES tenants,
  FOREIGN KEY (tenant_id, team_id) REFERENCES teams, FOREIGN KEY (tenant_id, user_id) REFERENCES users);
CREATE TABLE tickets (
  tenant_id int NOT NULL REFERENCES tenants, id int, subject text NOT NULL, description text,
  status_code varchar(20) NOT NULL REFERENCES ticket_statuses, priority_code varchar(10) REFERENCES priorities,
  requester_id int NOT NULL, assignee_id int, team_id int, parent_id int, opened_at timestamptz NOT NULL,
  closed_at timestamptz, updated_at timestamptz NOT NULL, lock_version int NOT NULL, PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, requester_id) REFERENCES users, FOREIGN KEY (tenant_id, assignee_id) REFERENCES users,
  FOREIGN KEY (tenant_id, team_id) REFERENCES teams, FOREIGN KEY (tenant_id, parent_id) REFERENCES tickets);
CREATE TABLE ticket_comments (
  tenant_id int, ticket_id int, comment_no int, author_id int NOT NULL, body text NOT NULL, is_internal boolean NOT NULL,
  created_at timestamptz NOT NULL, edited_at timestamptz, PRIMARY KEY (tenant_id, ticket_id, comment_no),
  FOREIGN KEY (tenant_id) REFERENCES tenants, FOREIGN KEY (tenant_id, ticket_id) REFERENCES tickets,
  FOREIGN KEY (tenant_id, author_id) REFERENCES users);
CREATE TABLE ticket_links (
  tenant_id int, from_ticket_id int, to_ticket_id int, kind varchar(20),
  PRIMARY KEY (tenant_id, from_ticket_id, to_ticket_id, kind),
  FOREIGN KEY (tenant_id, from_ticket_id) REFERENCES tickets, FOREIGN KEY (tenant_id, to_ticket_id) REFERENCES tickets);
CREATE TABLE ticket_watchers (
  tenant_id int, ticket_id int, user_id int, PRIMARY KEY (tenant_id, ticket_id, user_id),
  FOREIGN KEY (tenant_id, ticket_id) REFERENCES tickets, FOREIGN KEY (tenant_id, user_id) REFERENCES users);
CREATE TABLE tags (
  tenant_id int NOT NULL REFERENCES tenants, id int, name text NOT NULL, color text, PRIMARY KEY (tenant_id, id));
CREATE TABLE ticket_tags (
  tenant_id int, ticket_id int, tag_id int, added_by int, added_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, ticket_id, tag_id), FOREIGN KEY (tenant_id, ticket_id) REFERENCES tickets,
  FOREIGN KEY (tenant_id, tag_id) REFERENCES tags, FOREIGN KEY (tenant_id, added_by) REFERENCES users);
CREATE TABLE attachments (
  id int PRIMARY KEY, tenant_id int NOT NULL, ticket_id int NOT NULL, comment_no int, uploaded_by int NOT NULL,
  file_name text NOT NULL, byte_size bigint NOT NULL, sha256 text NOT NULL, created_at timestamptz NOT NULL,
  FOREIGN KEY (tenant_id, ticket_id) REFERENCES tickets,
  FOREIGN KEY (tenant_id, ticket_id, comment_no) REFERENCES ticket_comments,
  FOREIGN KEY (tenant_id, uploaded_by) REFERENCES users);
CREATE TABLE ticket_events (
  id bigint PRIMARY KEY, tenant_id int NOT NULL, ticket_id int NOT NULL, actor_id int, event_type text NOT NULL,
  payload jsonb, occurred_at timestamptz NOT NULL, FOREIGN KEY (tenant_id, ticket_id) REFERENCES tickets,
  FOREIGN KEY (tenant_id, actor_id) REFERENCES users);
CREATE TABLE api_tokens (
  id int PRIMARY KEY, tenant_id int NOT NULL, user_id int NOT NULL, label text, token text NOT NULL, expires_at timestamptz,
  last_used_at timestamptz, FOREIGN KEY (tenant_id, user_id) REFERENCES users);
CREATE TABLE mail_queue (recipient text NOT NULL, body text NOT NULL, queued_at timestamptz NOT NULL);
